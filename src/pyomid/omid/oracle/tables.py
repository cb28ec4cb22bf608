"""The tables that the TSO knows: it decides a commit to a *decidable* table without reading the catalog (K6).

    registered    the catalog lists it                   } decidable
    marked        this TSO put a durable mark of it      }
    other         the TSO reads the catalog, marks the table if it is missing there, then decides the commit

A client that drops a table, or removes its mark, sends a fence when the catalog no longer calls the table present. The
fence makes the TSO forget the table. The TSO also ignores the result of a read or a mark that began before the fence:

    TSO reads the catalog: lists t | drop: entry deleted, fence | the read's result arrives: t stays forgotten
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pyomid.errors import Misuse, Unavailable
from pyomid.omid.oracle.instructions import MarkUnknownTable, ReadTables, Reply
from pyomid.omid.wire.messages import Fence, FenceReply
from pyomid.protocol.timestamps import dated
from pyomid.types import CommitRequest

if TYPE_CHECKING:
    from pyomid.omid.oracle.machine import TsoMachine

FENCED_TABLES_MAX: Final = 65_536
"""Tables fenced above D: the TSO remembers the fence of each until D has passed it. A drop needs three fences."""


class KnownTables:
    """The tables that one TSO has found registered or marked; none at first."""

    def __init__(self, registered: Iterable[int] = ()) -> None:
        self.registered = frozenset(registered)
        self.marked: frozenset[int] = frozenset()
        self.unregistered: frozenset[int] = frozenset()
        """Tables that commits named and the catalog does not list; bounded."""
        self.decidable = self.registered
        """A change replaces the object."""
        self._calls: list[set[int]] = []

    def begin_call(self) -> set[int]:
        """Begin a read or a mark. The returned set collects the tables that are forgotten until the call ends."""
        call: set[int] = set()
        self._calls.append(call)
        return call

    def end_call(self, call: set[int], *, registered: Iterable[int] | None = None, marked: int | None = None) -> None:
        """End a call. `registered`: all tables it read; `marked`: the table it marked; neither: it failed."""
        self._calls = [other for other in self._calls if other is not call]
        if registered is not None:
            self.registered = frozenset(registered) - call
            self.unregistered -= self.registered
            self.marked -= self.registered  # a registration by an earlier version removes the mark
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
        """Remember the tables that the catalog does not list. If they would be more than `unregistered_max`, remember
        none and return False."""
        unregistered = self.unregistered.union(table_ids) - self.registered
        if len(unregistered) > max(unregistered_max, len(self.unregistered)):
            return False
        self.unregistered = unregistered
        return True


class TableRequests:
    """Commits to tables that are not decidable yet, and fences."""

    def __init__(self, tso: TsoMachine) -> None:
        self._tso = tso
        self._waiting: list[tuple[Hashable, int, CommitRequest]] = []
        """Commits that name a table that is not decidable."""
        self._is_looking_up = False
        self._marking: int | None = None
        self._fences_behind_mark: list[tuple[Hashable, int, int]] = []
        """(peer, tag, table id)"""
        self._is_reading = False
        self._read_due_s = tso.step.now_s

    # ── tables that are not decidable ───────────────────────────────────────────────────────────────────────────

    def decide_later(self, peer: Hashable, tag: int, request: CommitRequest) -> None:
        """K6: a table missing from the catalog gets a durable mark before a commit to it is decided.

        A commit that a fence refuses anyway leaves no mark: the mark would come after the drop removed the table's
        mark.
        """
        conflict = self._tso.commits.conflict(request)
        if conflict is not None:
            self._tso.commits.abort(peer, tag, request, conflict)
            return
        self._waiting.append((peer, tag, request))
        self._tso.first_attempts.wait(request)
        if not self._is_looking_up:
            self._is_looking_up = True
            self._tso.store.run(self._look_up())

    async def _look_up(self) -> None:
        """Read the catalog once, and put one mark per missing table, for all commits that wait."""
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                await self._read()
                waiting = [each for each in waiting if self._may_name(*each)]
                for _, _, request in waiting:
                    for table_id in request.table_ids:
                        if self._needs_mark(table_id, request):
                            await self._mark(table_id)
            except Unavailable as error:
                for peer, tag, request in waiting:
                    self._tso.first_attempts.end_wait(request)
                    self._tso.step.refuse(peer, tag, error)
                continue
            for peer, tag, request in waiting:
                self._tso.first_attempts.end_wait(request)
                self._tso.take_commit(peer, tag, request)
        self._is_looking_up = False

    def _needs_mark(self, table_id: int, request: CommitRequest) -> bool:
        """A commit that a fence refuses needs no mark, even if the fence came while the catalog was read."""
        return table_id not in self._tso.tables.decidable and self._tso.commits.conflict(request) is None

    async def _read(self) -> None:
        call = self._tso.tables.begin_call()
        try:
            registered: frozenset[int] = await ReadTables()
        except Unavailable:
            self._tso.tables.end_call(call)
            raise
        self._tso.tables.end_call(call, registered=registered)

    async def _mark(self, table_id: int) -> None:
        """Put a mark. A fence of the table waits for it: the fence's sender removes the mark, and no mark may be put
        after that."""
        call = self._tso.tables.begin_call()
        self._marking = table_id
        marked = None
        try:
            await MarkUnknownTable(table_id)
            marked = table_id
            self._tso.step.counters["unknown_tables"] += 1
        finally:
            self._tso.tables.end_call(call, marked=marked)
            self._marking = None
            fences, self._fences_behind_mark = self._fences_behind_mark, []
            for fence in fences:
                self.fence(*fence)

    def _may_name(self, peer: Hashable, tag: int, request: CommitRequest) -> bool:
        """Limit unregistered tables: random ids must fill neither the catalog nor memory."""
        if self._tso.tables.name(request.table_ids, self._tso.settings.unknown_tables_max):
            return True
        self._tso.first_attempts.end_wait(request)
        self._tso.step.refuse(peer, tag, self._too_many_unregistered(request.start_ts))
        return False

    def _too_many_unregistered(self, start_ts: int) -> Misuse:
        return Misuse(
            f"start_ts {start_ts} names tables that are not registered, and the TSO remembers "
            f"{len(self._tso.tables.unregistered)} such tables already: `pyomid tables URL discover` prints the "
            "commands that register them",
            start_ts=start_ts,
        )

    def read_if_due(self) -> None:
        """Read the list of registered tables again, at intervals."""
        if self._tso.step.now_s >= self._read_due_s and not self._is_reading:
            self._is_reading = True
            self._tso.store.run(self._read_again())

    async def _read_again(self) -> None:
        with suppress(Unavailable):  # keep the old list: a table missing from it is looked up before its commit
            await self._read()
        self._is_reading = False
        self._read_due_s = self._tso.step.now_s + self._tso.settings.tables_interval_s

    # ── fences ───────────────────────────────────────────────────────────────────────────────────────────────────

    def fence(self, peer: Hashable, tag: int, table_id: int) -> None:
        """T8: draw a fence as part of the open batch. The oldest batch closes after it, so the next window lies above
        the fence.

        Fences that come while their batch waits behind others share that batch: its window serves no begin yet. The
        TSO forgets the table (K6), because it may be dropped and its mark removed.
        """
        fenced = self._tso.oracle.fenced
        if table_id == self._marking:
            self._fences_behind_mark.append((peer, tag, table_id))
            return
        if table_id not in fenced and len(fenced) >= FENCED_TABLES_MAX:
            decided = dated(self._tso.watermarks.decided)
            self._tso.step.refuse(peer, tag, Unavailable(
                f"{len(fenced)} tables are fenced above the low watermark {decided}, the most "
                "that the TSO remembers: try again when the watermark has passed some of the fences"
            ))  # fmt: skip
            return
        fence_ts = self._tso.windows.clock.take()
        if fence_ts is None:
            self._tso.ceiling.wait(peer, tag, Fence(table_id))
            return
        self._tso.oracle.fence(table_id, fence_ts)
        fenced.add(table_id)
        self._tso.begins.fenced_ts = fence_ts
        self._tso.tables.forget(table_id)
        self._tso.step.counters["fences"] += 1
        self._tso.commits.answer_after_batch(Reply(peer, tag, FenceReply(table_id, fence_ts)))
