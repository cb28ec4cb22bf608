"""Runs of a function in a transaction, which are repeated after a conflict, and commit at most once under a durable
id."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyomid.coroutines import Blocking, Pause, Routine
from pyomid.database import idempotency
from pyomid.database.driver import CallProgram
from pyomid.database.idempotency import AlreadyDone
from pyomid.database.table_admin import ensure_keys_table
from pyomid.errors import ConflictError, MisuseType, OmidError, OutcomeUnknown, SnapshotTooOld
from pyomid.rows.values import shown_value

if TYPE_CHECKING:
    from pyomid.config import Settings
    from pyomid.database.open_database import OpenDatabase
    from pyomid.database.transaction import TransactionCore

logger = logging.getLogger(__name__)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Full jitter: the pause is uniform between 0 and a bound, a multiple of the run's shortest attempt.

        conflicts   1   2   3   4   5   6   8  10  20  40  80
        bound       2   4   8  16  32  27  20  16   8   4   2     times

    Of all runs that write the same row, one wins each time. The pauses spread the losers out, so that fewer runs
    overlap. From the fifth conflict on, runs with more conflicts pause less, so that no run waits for ever. The pause
    may be 0, because with `not_before` the next snapshot contains the winner: if only two runs met, the loser may rerun
    at once.

    `least_s` is the length for which a shorter attempt counts. `longest_s` is the maximum of the bound.
    """

    least_s: float
    longest_s: float
    retries: int
    uniform: Callable[[float, float], float]

    @classmethod
    def of(cls, settings: Settings, uniform: Callable[[float, float], float], retries: int | None = None) -> Backoff:
        """Return the back-off for these settings. `retries`, if given, replaces the settings' maximum number of
        reruns."""
        return cls(
            least_s=settings.retry_backoff_ms / 1000,
            longest_s=settings.retry_backoff_ms_max / 1000,
            retries=settings.retries if retries is None else retries,
            uniform=uniform,
        )

    def pause_s(self, conflicts: int, attempt_s: float) -> float:
        """Return the pause after this many conflicts (1 …). `attempt_s` is the duration of the shortest attempt so
        far."""
        times = min(2.0 ** min(conflicts, _DOUBLINGS), _DOUBLINGS * 2.0**_DOUBLINGS / conflicts)
        return self.uniform(0.0, min(self.longest_s, times * max(self.least_s, attempt_s)))


_DOUBLINGS: Final = 5
"""The bound doubles 5 times, up to 32. With this maximum the longest wait was shortest, measured with 2 to 64 workers
that claim one row."""


RERUN: Final = "; rerun it from its beginning, as db.run does"
"""The end of a conflict's message, except for the last conflict of a run."""


class Attempts:
    """The attempts of one run, for every front end. It decides whether another attempt follows.

    After a conflict another attempt follows, whose snapshot is above the commit that won. With a durable id, another
    attempt also follows a lost reply. Its snapshot shows whether the idempotency key exists; if the first attempt
    commits later, the key's conflict check admits only one of the two. If no attempt follows a lost reply, the run may
    have committed, whatever error the last attempt raised.
    """

    def __init__(
        self,
        backoff: Backoff,
        run_id: str | None,
        on_conflict: Callable[[ConflictError], None] | None = None,
    ) -> None:
        """`on_conflict` is called with each conflict that another attempt follows."""
        self.not_before = 0
        self._backoff = backoff
        self._run_id = run_id
        self._on_conflict = on_conflict
        self._failures = 0
        self._shortest_s = inf
        self._began_s = time.monotonic()
        self._lost: OutcomeUnknown | None = None
        self._too_old: set[object] = set()
        self._reads_outside = False
        """Whether two attempts read one snapshot, which the function did not begin."""

    def begin(self) -> None:
        """Note that an attempt begins now."""
        self._began_s = time.monotonic()

    def pause_s(self, error: BaseException) -> float | None:
        """Return the pause before the next attempt, after an attempt that ended with `error`. None if no attempt
        follows: the caller must raise `error`.

        If an earlier attempt may have committed, `error` would hide that. So the call raises `OutcomeUnknown` in place
        of a pyomid error, and adds a note to any other error.
        """
        self._failures += 1
        self._shortest_s = min(self._shortest_s, time.monotonic() - self._began_s)
        if isinstance(error, OmidError) and self._is_retried(error) and self._failures <= self._backoff.retries:
            self.not_before = cause_of(error)
            pause_s = self._backoff.pause_s(self._failures, self._shortest_s)
            if self._on_conflict is not None and isinstance(error, ConflictError):
                self._on_conflict(error)
            return pause_s
        if isinstance(error, ConflictError):
            self._note_attempts(error)
        if self._lost is not None and self._lost is not error:
            self._warn_of(error, self._lost)
        return None

    def _note_attempts(self, error: ConflictError) -> None:
        """Replace the message's advice to rerun by the number of attempts, or by what the function must change."""
        if self._reads_outside:
            error.message += "; a rerun would read the same snapshot, so the function must read a newer one"
            return
        last = f"the last of {self._failures} attempts" if self._failures > 1 else "the only attempt"
        error.message = f"{error.message.removesuffix(RERUN)}; this was {last} (option retries={self._backoff.retries})"

    def _is_retried(self, error: OmidError) -> bool:
        if isinstance(error, OutcomeUnknown) and self._run_id is not None:
            self._lost = error
        if isinstance(error, SnapshotTooOld):
            snapshot = error.values.get("start_ts", error.values.get("at"))
            self._reads_outside = snapshot in self._too_old
            if self._reads_outside:
                return False
            if snapshot is not None:
                self._too_old.add(snapshot)
        return error is self._lost or isinstance(error, ConflictError)

    def _warn_of(self, error: BaseException, lost: OutcomeUnknown) -> None:
        maybe = (
            f"an earlier attempt of run {self._run_id!r} may have committed; to find out, rerun it under the same id"
        )
        if isinstance(error, OmidError):
            raise OutcomeUnknown(f"{maybe}; the last attempt ended with: {error}", **lost.values) from error
        error.add_note(maybe)


def check_function(function: object) -> None:
    """Raise `MisuseType` if calling the function would run none of its code: the transaction would commit without
    it."""
    check_callable(function)
    kind = next((kind for kind, is_kind in _RUN_LATER.items() if _is(is_kind, function)), None)
    if kind is not None:
        raise MisuseType(
            f"{_named(function)} is {kind}: calling it would not run its body, and the transaction would commit "
            "without writes. Pass a plain function here, or an `async def` to a database of pyomid.aio",
            value=function,
        )


def check_callable(function: object) -> None:
    """Raise `MisuseType` if the first argument of a run is not a function."""
    if not callable(function):
        raise MisuseType(
            f"db.run needs a function, not {shown_value(function)}; for example, db.run(transfer, 100) calls "
            "transfer(tx, 100)",
            value=function,
        )


def transaction_place(function: object) -> int:
    """Return the position of the transaction among the parameters of a function to decorate: 1 after `self` or `cls`,
    otherwise 0. Raise `MisuseType` for a `staticmethod` or `classmethod`, which must be decorated last."""
    if isinstance(function, (staticmethod, classmethod)):
        kind = type(function).__name__
        raise MisuseType(
            f"{_named(function)} is a {kind} already: write @{kind} above the decorator `transactional`, not below it",
            value=function,
        )
    if not callable(function):
        raise MisuseType(f"the decorator `transactional` needs a function, not {function!r}", value=function)
    try:
        first = next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):  # the function is not written in Python
        first = ""
    return 1 if first in ("self", "cls") else 0


_RUN_LATER: Final = {
    "a coroutine function": inspect.iscoroutinefunction,
    "an asynchronous generator function": inspect.isasyncgenfunction,
    "a generator function": inspect.isgeneratorfunction,
}


def check_result(result: R, function: object) -> R:
    """Return the result. Raise `MisuseType`, which rolls back, if the result is awaitable (a lambda around an `async
    def`)."""
    if inspect.isawaitable(result):
        _never_awaited(result)
        raise MisuseType(
            f"{_named(function)} returned {type(result).__name__}, which is not awaited here, so nothing was "
            "committed. Pass a plain function, or use a database of pyomid.aio",
            value=function,
        )
    return result


def check_awaitable(result: R, function: object) -> R:
    """Return the result. Raise `MisuseType`, which rolls back, if the result is not awaitable: the function awaited
    nothing."""
    if not inspect.isawaitable(result):
        _never_awaited(result)
        raise MisuseType(
            f"{_named(function)} returned {type(result).__name__}, which a database of pyomid.aio cannot await, so "
            "nothing was committed. Make the function an `async def`, or use pyomid.connect",
            value=function,
        )
    return result


def _is(is_kind: Callable[[Any], bool], function: object) -> bool:
    return is_kind(function) or is_kind(vars(type(function)).get("__call__"))


def _never_awaited(result: object) -> None:
    """Close a coroutine that never ran, so that Python does not warn about it too."""
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()


def _named(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


async def run_transaction(
    database: OpenDatabase,
    begin: Callable[[int], Routine[TransactionCore]],
    run_id: str | None,
    body: Callable[[Any], object],
) -> Any:
    """Run `body(transaction)` and commit, with as many `Attempts` as necessary. Return the result, or `AlreadyDone`.

    `begin(not_before)` begins a transaction of the front end.
    """
    if run_id is not None:
        await Blocking(partial(ensure_keys_table, database.deployment))

    async def one_attempt(not_before: int) -> Any:
        transaction = await begin(not_before)
        return await transaction.run_block(_try(transaction, run_id, body))

    retried = None if database.reports is None else database.reports.retried
    return await attempts(Attempts(database.backoff(), run_id, retried), one_attempt)


async def attempts(attempts: Attempts, one_attempt: Callable[[int], Routine[R]]) -> R:
    """Return the result of the first `one_attempt(not_before)` that succeeds. Every front end uses this loop."""
    while True:
        attempts.begin()
        try:
            return await one_attempt(attempts.not_before)
        except BaseException as error:
            pause_s = attempts.pause_s(error)
            if pause_s is None:
                raise
        await Pause(pause_s)


async def _try(transaction: TransactionCore, run_id: str | None, body: Callable[[Any], object]) -> Any:
    if run_id is not None:
        done = await claim_key(transaction, run_id)
        if done is not None:
            return done
    result = await CallProgram(partial(body, transaction))
    if run_id is not None:
        await _keep_result(transaction, run_id, result)
    return result


async def _keep_result(transaction: TransactionCore, run_id: str, result: object) -> None:
    """Store the result with the idempotency key, in the same transaction, unless the program ended that transaction or
    made it rollback-only."""
    value = idempotency.kept_result(result)
    if value is not None and transaction.can_write:
        keys = await transaction.table(idempotency.KEYS_TABLE)
        await keys.buffer(idempotency.key_row(run_id), {idempotency.RESULT_COLUMN: value})


async def claim_key(transaction: TransactionCore, run_id: str) -> AlreadyDone | None:
    """Read the idempotency key in the transaction's snapshot and return the run that it shows. If there is no key,
    write it in the transaction and return None."""
    keys = await transaction.table(idempotency.KEYS_TABLE)
    key, expired = await keys.read(idempotency.key_rows(run_id), None)
    done = idempotency.found_key(run_id, {**key, **expired})
    if done is None:
        write = idempotency.key_write(run_id, transaction.start_ts)
        await keys.buffer(write.row, dict(write.cells))
    return done


def cause_of(error: OmidError) -> int:
    """Return the timestamp of the commit that caused an abort. If the next attempt does not begin above it
    (`not_before`), that attempt aborts too."""
    return int(error.values.get("commit_ts", 0))
