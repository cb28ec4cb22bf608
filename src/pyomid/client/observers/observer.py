"""What a database's client did, and how long it took, told to those who were named to `connect`.

    begin, read, scan, commit, rollback ──steps──▶ `Reports.steps` ──`Operation`──▶ `Observer.done` of each
    a run goes on after a conflict ────────────────────────────────────────────▶ `Observer.retried`

Without an observer a database has no `Reports`, and an operation costs one look at that.
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
    """One batch of a scan."""
    COMMIT = "commit"
    """Its flush included."""
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Operation:
    """One that ended, whether by itself or by `error`."""

    kind: Kind
    transaction: RowTransaction[Any] | None
    """None: its begin failed. Observers keep it by weak references only: a transaction that is forgotten has ended."""
    table: str
    """Of a read or scan; else empty."""
    began_s: float
    """Seconds since 1970."""
    seconds: float
    error: BaseException | None = None


class Observer:
    """Base class of observers: each method does nothing. They run in the thread or event loop of the transaction, so
    they neither wait nor take long; an error of theirs is logged and not raised."""

    def done(self, operation: Operation) -> None:
        """An operation ended."""

    def retried(self, error: ConflictError) -> None:
        """`run`, `run_once` or a `transactional` function goes on after this conflict."""


class Reports:
    """Tells all observers of one database."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers: Final = tuple(observers)
        self._failed: set[int] = set()

    def steps(self, kind: Kind, transaction: RowTransaction[Any], table: str, steps: Steps[T]) -> Steps[T]:
        """The same steps, told when they end."""
        began_s, clock_s = time.time(), time.perf_counter()
        error: BaseException | None = None
        try:
            return (yield from steps)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._tell(kind, transaction, table, began_s, clock_s, error)
            del error  # its traceback holds this frame

    def begin_steps(self, steps: Steps[T]) -> Steps[T]:
        """As `steps`, of those that return a transaction."""
        began_s, clock_s = time.time(), time.perf_counter()
        try:
            transaction: Any = yield from steps
        except BaseException as error:
            self._tell(Kind.BEGIN, None, "", began_s, clock_s, error)
            raise
        self._tell(Kind.BEGIN, transaction, "", began_s, clock_s, None)
        begun: T = transaction
        return begun

    def retried(self, error: ConflictError) -> None:
        for observer in self._observers:
            try:
                observer.retried(error)
            except Exception as raised:
                self._log(observer, raised)

    def _tell(
        self,
        kind: Kind,
        transaction: RowTransaction[Any] | None,
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
        """Once for each."""
        if id(observer) not in self._failed:
            self._failed.add(id(observer))
            logger.warning("observer %r failed, and is called on: %r", observer, error)


def reports_to(observers: Sequence[Observer]) -> Reports | None:
    return Reports(observers) if observers else None
