"""The TSO's requests to its store: calls under way, repeated while they fail, and procedures that wait for them.

A request that takes several store calls is a *procedure*: a generator that yields a store operation, `EpochWrite`
(changes of the leader state, merged with others that wait, one write at a time) or `AfterBatch`. It is sent the result,
or the error of a store that failed for too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from pyomid.errors import Corruption, Deposed, OmidError, Unavailable
from pyomid.oracle.instructions import StoreCall, StoreOperation, UpdateLeaderState
from pyomid.oracle.leader_state_changes import merged
from pyomid.types import LeaderStateChanges

RETRY_DELAY_S: Final = 0.01
"""The first pause before a failed store call is repeated. It doubles up to `RETRY_DELAY_S_MAX`."""

RETRY_DELAY_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class AfterBatch:
    """A procedure's wait until batch `seq` is released; no wait if it was released before."""

    seq: int


@dataclass(frozen=True, slots=True)
class EpochWrite:
    """A procedure's wait until these changes of the leader state are durable."""

    changes: LeaderStateChanges


Procedure = Generator["StoreOperation | AfterBatch | EpochWrite", Any, None]


class Death(Exception):
    """Ends the machine: it puts out nothing but `Die`."""


@dataclass(slots=True)
class _Call:
    """A store call under way."""

    operation: StoreOperation
    resume: Callable[[Any], None]
    fail: Callable[[OmidError], None]
    failures: int = 0
    first_failed_s: float = 0.0


class StoreWork:
    """The store calls of one TSO. `put_out` takes each call; `retry_s`: how long a call that fails is repeated."""

    def __init__(
        self, epoch: int, *, retry_s: float, counters: Counter[str], put_out: Callable[[StoreCall], None]
    ) -> None:
        self._epoch = epoch
        self._retry_s = retry_s
        self._counters = counters
        self._put_out = put_out
        self._calls: dict[int, _Call] = {}
        self._next_token = 1
        self._epoch_queue: list[tuple[LeaderStateChanges, Callable[[Any], None]]] = []
        self._epoch_writing = False
        self._released_seq = 0
        self._after_release: dict[int, list[Procedure]] = {}

    @property
    def is_idle(self) -> bool:
        """No call is under way."""
        return not self._calls

    @property
    def awaits_release(self) -> bool:
        """A procedure waits for a batch."""
        return bool(self._after_release)

    def run(self, procedure: Procedure, result: Any = None, error: OmidError | None = None) -> None:
        """Drives a procedure to its next wait."""
        try:
            step = procedure.send(result) if error is None else procedure.throw(error)
        except StopIteration:
            return
        except OmidError as failed:
            self._give_up(failed)
        match step:
            case AfterBatch(seq) if seq <= self._released_seq:
                self.run(procedure)
            case AfterBatch(seq):
                self._after_release.setdefault(seq, []).append(procedure)
            case EpochWrite(changes):
                self._epoch_queue.append((changes, lambda done: self.run(procedure, done)))
                self.start_epoch_write()
            case operation:
                self.call(
                    operation,
                    lambda done: self.run(procedure, done),
                    lambda failed: self.run(procedure, None, failed),
                )

    def call(
        self,
        operation: StoreOperation,
        resume: Callable[[Any], None],
        fail: Callable[[OmidError], None] | None = None,
    ) -> None:
        """Begins a call. `resume` gets the result. `fail` gets the error; without it an error ends the machine."""
        token = self._next_token
        self._next_token += 1
        self._calls[token] = _Call(operation, resume, fail or self._give_up)
        self._put_out(StoreCall(token, operation))

    def start_epoch_write(self) -> None:
        """Begins the next write of the leader state. One at a time: their order is the order of the laws."""
        if self._epoch_writing or not self._epoch_queue:
            return
        self._epoch_writing = True
        queue, self._epoch_queue = self._epoch_queue, []

        def written(_: Any) -> None:
            self._epoch_writing = False
            for _changes, resume in queue:
                resume(None)
            self.start_epoch_write()

        self.call(UpdateLeaderState(self._epoch, merged(changes for changes, _ in queue)), written)

    def done(self, token: int, result: Any) -> None:
        """A call has ended. A call that is not known is ignored."""
        call = self._calls.pop(token, None)
        if call is not None:
            call.resume(result)

    def failed(self, token: int, error: OmidError, now_s: float) -> None:
        """A call failed. It is repeated for `retry_s`; then its request is refused, or the machine ends if the call
        has no `fail`."""
        call = self._calls.get(token)
        if call is None:
            return
        if isinstance(error, Deposed | Corruption) or not isinstance(error, Unavailable):
            raise Death(f"{type(call.operation).__name__}: {error.message}")
        self._counters["store_failures"] += 1
        call.failures += 1
        if call.failures == 1:
            call.first_failed_s = now_s
        if now_s - call.first_failed_s >= self._retry_s:
            del self._calls[token]
            call.fail(error)
            return
        delay_s = min(RETRY_DELAY_S * 2 ** (call.failures - 1), RETRY_DELAY_S_MAX)
        self._put_out(StoreCall(token, call.operation, delay_s))

    def released(self, seq: int) -> None:
        """Batch `seq` is released. Batches are released in order."""
        self._released_seq = seq
        for procedure in self._after_release.pop(seq, ()):
            self.run(procedure)

    def _give_up(self, error: OmidError) -> NoReturn:
        raise Death(f"the store fails for {self._retry_s} s: {error.message}") from error
