"""The ports of a TSO: what its process and its clients' sessions need of a store, beyond `pyomid.ports`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pyomid.ports import Commits, DatabaseState
from pyomid.types import LeaderStateChanges, SealOutcome


class FlushEnd(NamedTuple):
    """A durable flush: the starts that a marker refused, and the epoch read after the flush."""

    refused: Sequence[int]
    epoch: int


FlushEnded = Callable[["FlushEnd | Exception"], None]
"""Called at the end of a flush, with the result or its error."""


class FlushLoop(Protocol):
    """The event loop that submits flushes to a commit table, with its threads. For use on the loop's thread only."""

    @property
    def leader_state(self) -> LeaderState: ...

    def on_thread(self, work: Callable[[], FlushEnd], ended: FlushEnded) -> None:
        """Run `work` on a thread; call `ended` on the loop with its result or error."""


class CommitTable(Commits):
    """start → commit, and invalidation markers start → invalid. Starts are multiples of 50.

    An implementation defines the blocking calls. Calls for many starts, and the flush calls of an event loop, have
    defaults.
    """

    @abstractmethod
    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        """Put entries (start, commit). Durable on return. Return the starts that a marker refused. Empty if the store's
        writes are not conditional: then the reply is safe only after a `LeaderState.read` that follows."""

    @abstractmethod
    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        """Put the decision of a large commit by one conditional write. False if a marker exists."""

    @abstractmethod
    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        """Put the entries of a decided commit's branches. Each replaces a marker in one mutation (T13)."""

    @abstractmethod
    def seal(self, start: int) -> SealOutcome:
        """Place the marker iff there is no commit. Durable on return. An existing marker counts as placed."""

    @abstractmethod
    def delete_below(self, horizon: int) -> int:
        """Delete entries and markers with start < `horizon`, for sanitizing. Return how many."""

    # ── many starts ──────────────────────────────────────────────────────────────────────────────────────────────

    def put_block(self, entries: NDArray[np.int64]) -> list[int]:
        """`put` for rows (start, commit). The caller may reuse the array on return."""
        return self.put([(start, commit_ts) for start, commit_ts in entries.tolist()])

    def seal_many(self, starts: Sequence[int]) -> list[SealOutcome]:
        """`seal` for each, in order, all durable on return. A takeover may seal thousands."""
        return [self.seal(start) for start in starts]

    # ── for the TSO's service ────────────────────────────────────────────────────────────────────────────────────

    def submit(self, entries: NDArray[np.int64], ended: FlushEnded, loop: FlushLoop) -> None:
        """Begin to put rows (start, commit). `ended` is called when all are durable, with the epoch that was read
        *after* that (T5), or with the error. Without rows it is called with the epoch only.

        `ended` is called once, on the loop, perhaps within this call, which never waits for the store. An error that it
        raises is the flush's. The caller does not change the array before the end. Several flushes may be in flight and
        end in any order.
        """

        def flush() -> FlushEnd:
            refused = self.put_block(entries) if len(entries) else []
            return FlushEnd(refused, loop.leader_state.read().epoch)

        loop.on_thread(flush, ended)

    def leave_loop(self) -> None:
        """The loop ends: no flush is submitted any more. Flushes in flight may fail."""


class LeaderState(DatabaseState):
    """The durable record of the leader's epoch and of what a new leader must know (protocol.md, Leadership)."""

    @abstractmethod
    def take_over(self, *, expected: int, epoch: int, ceiling: int) -> bool:
        """Compare-and-set the epoch (and ceiling); everything else stays. False if another TSO was faster, or if the
        row's ceiling is above `epoch`: then the old leader moved it after the read, and may hand out timestamps above
        `epoch` (decision 0003)."""

    @abstractmethod
    def update(self, epoch: int, changes: LeaderStateChanges) -> None:
        """Apply all changes durably together; iff the row holds another epoch, raise `Deposed` and apply none.

        An update whose reply was lost may have taken effect, but never takes effect after a later update (decision
        0004): over a network it is a compare-and-set of the whole row. Otherwise W, H and the ceiling could go back,
        and ended leases and pending records could return.
        """


class CeilingStore(Protocol):
    """Storage of the timestamp ceiling outside the leader state (ZooKeeper, an HBase table)."""

    def read(self) -> int: ...

    def compare_and_set(self, expected: int, ceiling: int) -> bool: ...
