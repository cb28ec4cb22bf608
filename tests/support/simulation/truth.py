"""What really happened, watched from outside, and the invariants of hazards.md that need no history.

I3  told committed ⇒ committed for ever          I6  a shadow cell holds the one true commit timestamp
I4  told aborted ⇒ never committed               I7  timestamps are unique; W, H, epoch and ceiling never go back
I5  an entry leaves the commit table only when every cell of it has its shadow cell or is gone

I1 and I2 are judged by `testing.checker` on the recorded history, with every unknown outcome settled by what is
known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyomid.protocol.sanitize import covered_watermark
from pyomid.testing.history import History, Outcome, Transaction
from pyomid.types import Cell, CellVersion, KeyRange, LeaderRecord, start_of
from simulation.storage import Disk, Watch


class Broken(AssertionError):
    """An invariant does not hold; the message names it."""


@dataclass
class Truth(Watch):
    """Knows every commit that took effect, whoever was told of it."""

    disk: Disk
    commits: dict[int, int] = field(default_factory=dict)
    """Start (or branch) → commit timestamp, of entries that took effect."""
    told: dict[int, int] = field(default_factory=dict)
    """Start → what its client was told: the commit timestamp, 0 for aborted."""
    issued: dict[int, str] = field(default_factory=dict)
    promised: dict[int, float] = field(default_factory=dict)
    """Leased start → until when it was promised that W stays below it (K7)."""
    shared: dict[int, float] = field(default_factory=dict)
    """The same of what is shared, whose owner's end ends nothing."""
    ended: set[int] = field(default_factory=set)
    """Starts whose lease was ended: a renewal that was on its way promises nothing any more."""
    now_s: Callable[[], float] = lambda: 0.0
    in_flight: Callable[[], Sequence[int]] = tuple
    """Starts decided by the leader that holds the epoch, entry not yet known to be durable."""
    last_state: LeaderRecord = field(default_factory=LeaderRecord)

    # ------------------------------------------------------------ as things take effect

    def entry_landed(self, start: int, commit_ts: int) -> None:
        """A commit-table entry took effect (no mark kept it out). Below H it is not believed by anybody (R4)."""
        if start < self.disk.leader_state.read().horizon:
            return
        known = self.commits.setdefault(start, commit_ts)
        if known != commit_ts:
            raise Broken(f"I3: start {start} committed at {known} and at {commit_ts}")
        if self.told.get(start) == 0:
            raise Broken(f"I4: start {start} was told aborted and commits at {commit_ts}")

    def shadow_written(self, table: str, cell: CellVersion, commit_ts: int) -> None:
        start = start_of(cell.version)
        if self.commits.get(start) != commit_ts:
            raise Broken(f"I6: shadow cell {commit_ts} beside {cell}, whose commit is {self.commits.get(start)}")

    def entries_leaving(self, starts: Sequence[int]) -> None:
        leaving = {start for start in starts if start in self.commits}
        if not leaving:
            return
        for info in self.disk.catalog.tables():
            for cell in self.cells_of(info.name):
                start = start_of(cell.version)
                if start in leaving and cell.commit_ts != self.commits[start]:
                    raise Broken(f"I5: the entry of {start} goes while {info.name} {cell} has no shadow cell")

    def cells_of(self, table: str) -> list[Cell]:
        return [cell for batch in self.disk.store.scan(table, KeyRange()) for cell in batch.all_cells()]

    def deleting_below(self, horizon: int) -> None:
        """Law 7: H is durable before the first delete."""
        durable = self.disk.leader_state.read().horizon
        if durable < horizon:
            raise Broken(f"R4: entries below {horizon} go while the durable H is {durable}")

    def after_move(self) -> None:
        state = self.disk.leader_state.read()
        last = self.last_state
        if state is last:
            return
        for name in ("epoch", "ceiling", "watermark", "horizon"):
            if getattr(state, name) < getattr(last, name):
                raise Broken(f"I7: {name} went back from {getattr(last, name)} to {getattr(state, name)}")
        if state.watermark > last.watermark:
            self._check_leases(state.watermark)
            self._check_law_4(state.watermark)
        self.last_state = state

    def _check_leases(self, watermark: int) -> None:
        for start, until_s in (*self.promised.items(), *self.shared.items()):
            if start <= watermark and self.now_s() < until_s:
                raise Broken(f"K7: W {watermark} passes {start}, whose lease was promised until {until_s:.1f}")

    def _check_law_4(self, watermark: int) -> None:
        """Every decided commit with start ≤ W is durable, or will never be told."""
        for start in self.in_flight():
            if start <= watermark and start not in self.commits:
                raise Broken(f"T2: W {watermark} is published while the commit of {start} is on its way")

    def lease_promised(self, start: int, until_s: float, *, shared: bool = False) -> None:
        """From now until then W stays below `start`, whoever leads."""
        if start in self.ended and not shared:
            return
        if start <= self.disk.leader_state.read().watermark and self.now_s() < until_s:
            raise Broken(f"K7: a lease on {start} is promised, and W has passed it")
        if shared:
            self.shared[start] = max(until_s, self.shared.get(start, until_s))
        else:
            self.promised[start] = until_s

    def lease_ended(self, start: int) -> None:
        self.promised.pop(start, None)
        self.ended.add(start)

    # ------------------------------------------------------------ as clients are told

    def start_issued(self, start_ts: int, by: str) -> None:
        self._issue(start_ts, f"start from {by}")

    def outcome_told(self, start_ts: int, commit_ts: int) -> None:
        """0: aborted, or looked up as rolled back."""
        before = self.told.setdefault(start_ts, commit_ts)
        if before != commit_ts:
            raise Broken(f"I3: start {start_ts} was told {before} and then {commit_ts}")
        if commit_ts and self.commits.get(start_ts) != commit_ts:
            raise Broken(f"I3: start {start_ts} was told committed at {commit_ts}, truth {self.commits.get(start_ts)}")
        if not commit_ts and start_ts in self.commits:
            raise Broken(f"I4: start {start_ts} was told aborted, it committed at {self.commits[start_ts]}")
        if commit_ts:
            self._issue(commit_ts, f"commit of {start_ts}")

    def _issue(self, timestamp: int, what: str) -> None:
        before = self.issued.setdefault(timestamp, what)
        if before != what:
            raise Broken(f"I7: timestamp {timestamp} is both {before} and {what}")

    # ------------------------------------------------------------ at the end

    def settle(self, history: History) -> History:
        """Every transaction with its true outcome; those whose client was not told keep no real-time edge."""
        for txn in history.transactions:
            self._settle(txn)
        return history

    def _settle(self, txn: Transaction) -> None:
        if txn.outcome is not Outcome.UNKNOWN or txn.start_ts is None:
            return
        commit_ts = self.commits.get(txn.start_ts)
        if commit_ts is None:
            txn.outcome = Outcome.ABORTED
        elif txn.commit_called is not None:
            txn.outcome, txn.commit_ts = Outcome.COMMITTED, commit_ts

    def what_is_left(self) -> list[str]:
        """After compaction and sanitising of a quiet store: everything ≤ the recorded W is clean."""
        state = self.disk.leader_state.read()
        found = []
        for info in self.disk.catalog.tables():
            cleaned = covered_watermark(self.disk.catalog.region_watermarks(info.name))
            for cell in self.cells_of(info.name):
                start = start_of(cell.version)
                if start <= cleaned and not cell.commit_ts:
                    found.append(f"{info.name} {cell} is ≤ W {cleaned}, cleaned, and has no shadow cell")
        for start, _ in self.disk.commits.entries():
            if start < state.horizon:
                found.append(f"the commit table still holds {start} < H {state.horizon}")
        return found
