"""The ports of a TSO: what the TSO's process and its clients' sessions need of a store beyond `pyomid.ports`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pyomid.ports import Commits, DatabaseState
from pyomid.types import LeaderStateChanges, SealOutcome


class FlushEnd(NamedTuple):
    """The result of a durable flush: the starts that a marker refused, and the epoch read after the flush."""

    refused: Sequence[int]
    epoch: int


FlushEnded = Callable[["FlushEnd | Exception"], None]
"""A callback for the end of a flush. It receives the result or the error."""


class FlushLoop(Protocol):
    """The event loop that submits flushes to a commit table, with its threads. Use it only on the loop's own thread."""

    @property
    def leader_state(self) -> LeaderState: ...

    def on_thread(self, work: Callable[[], FlushEnd], ended: FlushEnded) -> None:
        """Run `work` on a thread, then call `ended` on the loop with its result or error."""


class CommitTable(Commits):
    """The commit table. It maps each committed start to its commit, and holds invalidation markers. Starts are
    multiples of 50.

    An implementation must define the blocking calls. The calls for many starts, and those for the flushes of an event
    loop, have defaults.
    """

    @abstractmethod
    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        """Put entries (start, commit), durably on return, and return the starts that a marker refused. A store whose
        writes are not conditional returns none; then a reply is safe only after a later `LeaderState.read`."""

    @abstractmethod
    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        """Put the decision of a large commit by one conditional write. Returns False if a marker exists."""

    @abstractmethod
    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        """Put the entries of a decided commit's branches. Each entry replaces a marker, if there is one, in one
        mutation (T13)."""

    @abstractmethod
    def seal(self, start: int) -> SealOutcome:
        """Place the marker if there is no commit, durably on return. Return the outcome; an existing marker counts as
        placed."""

    @abstractmethod
    def delete_below(self, horizon: int) -> int:
        """Delete the entries and markers with start < `horizon`, for sanitizing, and return their number."""

    # ── many starts ──────────────────────────────────────────────────────────────────────────────────────────────

    def put_block(self, entries: NDArray[np.int64]) -> list[int]:
        """Like `put`, for an array of rows (start, commit). After the return the caller may reuse the array."""
        return self.put([(start, commit_ts) for start, commit_ts in entries.tolist()])

    def seal_many(self, starts: Sequence[int]) -> list[SealOutcome]:
        """Call `seal` for each start in order; all markers are durable on return. A takeover may seal thousands of
        starts."""
        return [self.seal(start) for start in starts]

    # ── for the TSO's service ────────────────────────────────────────────────────────────────────────────────────

    def submit(self, entries: NDArray[np.int64], ended: FlushEnded, loop: FlushLoop) -> None:
        """Begin to put rows (start, commit). When all are durable, `ended` is called with the epoch that was read
        *after* that (T5); otherwise with the error. Without rows it is called with the epoch only.

        `ended` is called once, on the loop, perhaps within this call. This call never waits for the store. If `ended`
        raises an error, the implementation handles it like an error of the flush. The caller must not change the array
        before the flush has ended. Several flushes may be in flight and end in any order.
        """

        def flush() -> FlushEnd:
            refused = self.put_block(entries) if len(entries) else []
            return FlushEnd(refused, loop.leader_state.read().epoch)

        loop.on_thread(flush, ended)

    def leave_loop(self) -> None:
        """Prepare for the end of the loop. No more flushes are submitted; flushes in flight may fail."""


class LeaderState(DatabaseState):
    """The durable record of the leader's epoch, and of everything that a new leader must know (protocol.md,
    Leadership)."""

    @abstractmethod
    def take_over(self, *, expected: int, epoch: int, ceiling: int) -> bool:
        """Replace the epoch and the ceiling by compare-and-set; everything else stays. Returns False if another TSO was
        faster, or if the row's ceiling is above `epoch`. In that case the old leader moved the ceiling after the read,
        and may hand out timestamps above `epoch` (decision 0003)."""

    @abstractmethod
    def update(self, epoch: int, changes: LeaderStateChanges) -> None:
        """Apply all changes durably together. If the row holds another epoch, raise `Deposed` and apply none.

        An update whose reply was lost may have taken effect, but must never take effect after a later update (decision
        0004). So over a network it is a compare-and-set of the whole row. Otherwise W, H and the ceiling could go back,
        and ended leases and pending records could return.
        """


class CeilingStore(Protocol):
    """A store of the timestamp ceiling outside the leader state (ZooKeeper, or an HBase table)."""

    def read(self) -> int: ...

    def compare_and_set(self, expected: int, ceiling: int) -> bool: ...
