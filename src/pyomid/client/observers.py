"""Observers: `connect(observers=…)` passes them every operation of a client, with its duration.

    begin, read, scan, commit, rollback ──steps──▶ `Reports.steps` ──`Operation`──▶ `Observer.done` of each
    a rerun follows a conflict     ────────────────────────────────────────────▶ `Observer.retried`

Without an observer a database has no `Reports`, and an operation costs one check of that. Two come with pyomid
(`pyomid.observe`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyomid.errors import ConflictError
from pyomid.protocol.effects import Steps

if TYPE_CHECKING:
    from pyomid.client.transaction import RowTransaction


logger = logging.getLogger(__name__)

T = TypeVar("T")


class Kind(StrEnum):
    BEGIN = "begin"
    READ = "read"
    """Rows by their keys."""
    SCAN = "scan"
    """A batch of a scan."""
    COMMIT = "commit"
    """Includes its flush."""
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that ended, successfully or with `error`."""

    kind: Kind
    transaction: RowTransaction | None
    """None: the begin failed. Observers must keep only weak references: a transaction ends when it is garbage."""
    table: str
    """The table of a read or scan; otherwise empty."""
    began_s: float
    """Seconds since 1970."""
    seconds: float
    error: BaseException | None = None


class Observer:
    """Base class of observers; its methods do nothing. Methods run in the transaction's thread or event loop, so they
    must not block. Their errors are logged, not raised."""

    def done(self, operation: Operation) -> None:
        """An operation ended."""

    def retried(self, error: ConflictError) -> None:
        """`run`, `run_once` or a `transactional` function is rerun after this conflict."""


class Reports:
    """Reports to all observers of a database."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers: Final = tuple(observers)
        self._failed: set[int] = set()

    def steps(self, kind: Kind, transaction: RowTransaction, table: str, steps: Steps[T]) -> Steps[T]:
        """Return the same steps, reported when they end."""
        began_s, clock_s = time.time(), time.perf_counter()
        error: BaseException | None = None
        try:
            return (yield from steps)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._report(kind, transaction, table, began_s, clock_s, error)
            del error  # its traceback holds this frame

    def begin_steps(self, steps: Steps[T]) -> Steps[T]:
        """As `steps`, for steps that return a transaction."""
        began_s, clock_s = time.time(), time.perf_counter()
        try:
            transaction: Any = yield from steps
        except BaseException as error:
            self._report(Kind.BEGIN, None, "", began_s, clock_s, error)
            raise
        self._report(Kind.BEGIN, transaction, "", began_s, clock_s, None)
        begun: T = transaction
        return begun

    def retried(self, error: ConflictError) -> None:
        for observer in self._observers:
            try:
                observer.retried(error)
            except Exception as raised:
                self._log(observer, raised)

    def _report(
        self,
        kind: Kind,
        transaction: RowTransaction | None,
        table: str,
        began_s: float,
        clock_s: float,
        error: BaseException | None,
    ) -> None:
        seconds = time.perf_counter() - clock_s
        for observer in self._observers:
            try:
                observer.done(Operation(kind, transaction, table, began_s, seconds, error))
            except Exception as raised:
                self._log(observer, raised)

    def _log(self, observer: Observer, error: Exception) -> None:
        """Log the first error of each observer."""
        if id(observer) not in self._failed:
            self._failed.add(id(observer))
            logger.warning(
                "observer %r raised %r; it will still be called, and its further errors are not logged", observer, error
            )


def reports_to(observers: Sequence[Observer]) -> Reports | None:
    return Reports(observers) if observers else None
