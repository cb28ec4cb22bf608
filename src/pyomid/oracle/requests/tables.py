"""What the TSO remembers of tables: a commit to a *decidable* table is decided without reading the catalog (K6).

    registered    was read in the catalog                } decidable
    marked        a durable mark of this TSO stands      }
    other         the catalog is read, a table that is not in it gets a mark, then the commit is decided

A client that drops a table, or removes its mark, sends a fence when the catalog no longer calls the table present. The
fence makes the TSO forget the table. The TSO also ignores what was read or marked by a call that began before the
fence:

    TSO reads the catalog: t is there | drop: the entry goes, fence | the read's answer comes: t is not known again
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Final

from pyomid.errors import Misuse, Unavailable
from pyomid.oracle.instructions import MarkUnknownTable, ReadTables, Reply
from pyomid.oracle.outgoing import Procedure, Step, StoreRequests
from pyomid.oracle.requests.begins import Begins, Ceiling
from pyomid.oracle.requests.commits import Commits
from pyomid.oracle.settings import TsoSettings
from pyomid.oracle.status_oracle import StatusOracle
from pyomid.oracle.watermarks import Watermarks
from pyomid.oracle.windows import BeginWindows
from pyomid.types import CommitRequest
from pyomid.wire.messages import Fence, FenceReply

FENCED_TABLES_MAX: Final = 65_536
"""Tables fenced above W: the fence of each is remembered until W has passed it. A drop needs three."""


class KnownTables:
    """The tables that one TSO knows. A new TSO knows none."""

    def __init__(self, registered: Iterable[int] = ()) -> None:
        self.registered = frozenset(registered)
        self.marked: frozenset[int] = frozenset()
        self.unregistered: frozenset[int] = frozenset()
        """Tables that commits named and the catalog does not list. Their number is bounded."""
        self.decidable = self.registered
        """It is another object whenever it has changed."""
        self._calls: list[set[int]] = []

    def begin_call(self) -> set[int]:
        """A read or a mark begins: the returned set gathers the tables that are forgotten until it ends."""
        call: set[int] = set()
        self._calls.append(call)
        return call

    def end_call(self, call: set[int], *, registered: Iterable[int] | None = None, marked: int | None = None) -> None:
        """The call ended. `registered`: all tables that it read; `marked`: the table that it marked; neither: it
        failed."""
        self._calls = [other for other in self._calls if other is not call]
        if registered is not None:
            self.registered = frozenset(registered) - call
            self.unregistered -= self.registered
            self.marked -= self.registered  # a registration of an earlier version takes the mark away
        if marked is not None and marked not in call:
            self.marked |= {marked}
        decidable = self.registered | self.marked
        if decidable != self.decidable:
            self.decidable = decidable

    def forget(self, table_id: int) -> None:
        for call in self._calls:
            call.add(table_id)
        if table_id in self.decidable:
            self.registered -= {table_id}
            self.marked -= {table_id}
            self.decidable -= {table_id}

    def name(self, table_ids: Iterable[int], unregistered_max: int) -> bool:
        """Remembers those of the tables that the catalog does not list. False, and remembers none, if they would be
        more than `unregistered_max`."""
        unregistered = self.unregistered.union(table_ids) - self.registered
        if len(unregistered) > max(unregistered_max, len(self.unregistered)):
            return False
        self.unregistered = unregistered
        return True


class TableRequests:
    """Commits to tables that are not decidable, and fences. `resume` takes a commit whose tables are decidable now."""

    def __init__(
        self,
        step: Step,
        store: StoreRequests,
        settings: TsoSettings,
        *,
        known: KnownTables,
        windows: BeginWindows,
        oracle: StatusOracle,
        begins: Begins,
        ceiling: Ceiling,
        watermarks: Watermarks,
        commits: Commits,
        resume: Callable[[Hashable, int, CommitRequest], None],
    ) -> None:
        self._step = step
        self._store = store
        self._settings = settings
        self._known = known
        self._windows = windows
        self._oracle = oracle
        self._begins = begins
        self._ceiling = ceiling
        self._watermarks = watermarks
        self._commits = commits
        self._resume = resume
        self._waiting: list[tuple[Hashable, int, CommitRequest]] = []
        """Commits that name a table which is not decidable."""
        self._is_looking_up = False
        self._marking: int | None = None
        self._fences_behind_mark: list[tuple[Hashable, int, int]] = []
        """(peer, tag, table id)"""
        self._is_reading = False
        self._read_due_s = step.now_s

    # ── tables that are not decidable ───────────────────────────────────────────────────────────────────────────

    def decide_later(self, peer: Hashable, tag: int, request: CommitRequest) -> None:
        """K6: a table id that is not in the catalog has a durable mark before a commit to it is decided.

        A commit that a fence refuses anyway leaves no mark: it would come after the drop has taken the table's mark
        away.
        """
        conflict = self._commits.conflict(request)
        if conflict is not None:
            self._commits.abort(peer, tag, request, conflict)
            return
        self._waiting.append((peer, tag, request))
        if not self._is_looking_up:
            self._is_looking_up = True
            self._store.run(self._look_up_steps())

    def _look_up_steps(self) -> Procedure:
        """One read of the catalog, and one mark a table, for all commits that wait."""
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                yield from self._read_steps()
                waiting = [each for each in waiting if self._may_name(*each)]
                for _, _, request in waiting:
                    for table_id in request.table_ids:
                        if self._needs_mark(table_id, request):
                            yield from self._mark_steps(table_id)
            except Unavailable as error:
                for peer, tag, _ in waiting:
                    self._step.refuse(peer, tag, error)
                continue
            for peer, tag, request in waiting:
                self._resume(peer, tag, request)
        self._is_looking_up = False

    def _needs_mark(self, table_id: int, request: CommitRequest) -> bool:
        """None for a commit that a fence refuses, also where the fence came while the catalog was read."""
        return table_id not in self._known.decidable and self._commits.conflict(request) is None

    def _read_steps(self) -> Procedure:
        call = self._known.begin_call()
        try:
            registered: frozenset[int] = yield ReadTables()
        except Unavailable:
            self._known.end_call(call)
            raise
        self._known.end_call(call, registered=registered)

    def _mark_steps(self, table_id: int) -> Procedure:
        """A fence of the table waits for the mark: the fence's sender takes the mark away, and none comes later."""
        call = self._known.begin_call()
        self._marking = table_id
        marked = None
        try:
            yield MarkUnknownTable(table_id)
            marked = table_id
            self._step.counters["unknown_tables"] += 1
        finally:
            self._known.end_call(call, marked=marked)
            self._marking = None
            fences, self._fences_behind_mark = self._fences_behind_mark, []
            for fence in fences:
                self.fence(*fence)

    def _may_name(self, peer: Hashable, tag: int, request: CommitRequest) -> bool:
        """Random ids must fill neither the catalog nor our memory."""
        if self._known.name(request.table_ids, self._settings.unknown_tables_max):
            return True
        self._step.refuse(peer, tag, self._too_many_unregistered(request.start_ts))
        return False

    def _too_many_unregistered(self, start_ts: int) -> Misuse:
        return Misuse(
            f"start_ts {start_ts} names tables that are not registered, and {len(self._known.unregistered)} such are "
            "known already: `pyomid tables URL discover` prints the commands that register them",
            start_ts=start_ts,
        )

    def read_if_due(self) -> None:
        """The list of registered tables is read again now and then."""
        if self._step.now_s >= self._read_due_s and not self._is_reading:
            self._is_reading = True
            self._store.run(self._read_again_steps())

    def _read_again_steps(self) -> Procedure:
        with suppress(Unavailable):  # the old list refuses nothing: an id not on it is looked up before its commit
            yield from self._read_steps()
        self._is_reading = False
        self._read_due_s = self._step.now_s + self._settings.tables_interval_s

    # ── fences ───────────────────────────────────────────────────────────────────────────────────────────────────

    def fence(self, peer: Hashable, tag: int, table_id: int) -> None:
        """T8: an entry of its batch, and the oldest batch closes behind it: the next window lies above the fence.

        A batch that waits behind others is shared by all fences that come meanwhile: its window serves no begin yet.
        What was believed of the table is forgotten (K6): it may be dropped, and its mark taken away.
        """
        fenced = self._oracle.fenced
        if table_id == self._marking:
            self._fences_behind_mark.append((peer, tag, table_id))
            return
        if table_id not in fenced and len(fenced) >= FENCED_TABLES_MAX:
            self._step.refuse(peer, tag, Unavailable(
                f"{len(fenced)} tables were fenced above the low watermark {self._watermarks.decided}, up to which "
                "all is decided: no more are until that has passed some"
            ))  # fmt: skip
            return
        fence_ts = self._windows.clock.take()
        if fence_ts is None:
            self._ceiling.wait(peer, tag, Fence(table_id))
            return
        self._oracle.fence(table_id, fence_ts)
        fenced.add(table_id)
        self._begins.fenced_ts = fence_ts
        self._known.forget(table_id)
        self._step.counters["fences"] += 1
        self._commits.answer_behind_batch(Reply(peer, tag, FenceReply(table_id, fence_ts)))
