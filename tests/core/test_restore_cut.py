"""Snapshots of regions and of the commit table, each of a moment of its own, cut to one moment (decision 0078)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pyomid.config import Settings
from pyomid.database.upkeep.backups import cut_copies
from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState, MemoryStore
from pyomid.omid.tso.local import LocalTso
from pyomid.omid.tso.store_calls import TsoStores
from pyomid.ports import Deployment
from pyomid.types import (
    BackupManifest,
    CellVersion,
    Column,
    KeyRange,
    RowWrite,
    ShadowWrite,
    TableInfo,
)

pytestmark = pytest.mark.fast

PLACE = Column(b"f", b"v")
ROWS = tuple(b"r%d" % number for number in range(4))
Cells = dict[tuple[bytes, int], int]
"""(row, start) → commit in the shadow cell, 0 without one."""


class World:
    """A database as its clients change it. A transaction writes all rows, or one; it is named by its start."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0
        self.epoch = 0
        self.horizon = 0
        self.lease = 1 << 60
        self.cells: Cells = {}
        self.entries: dict[int, int] = {}
        self.decided: dict[int, int] = {}
        self.open: list[int] = []
        self.in_flight: dict[int, int] = {}
        """Decided by a TSO that died: the entry may land at any time, or never."""
        self.sealed: set[int] = set()

    def tick(self) -> int:
        self.now += 50
        return self.now

    def rows_of(self, start: int) -> list[bytes]:
        return [row for row, version in self.cells if version == start]

    def begin(self) -> None:
        start = self.tick()
        for row in self.rng.sample(ROWS, self.rng.randint(1, len(ROWS))):
            self.cells[row, start] = 0
        self.open.append(start)

    def commit(self) -> None:
        live = [start for start in self.open if start > self.epoch]
        if live:
            start = self.rng.choice(live)
            self.open.remove(start)
            self.entries[start] = self.decided[start] = self.tick()

    def heal(self) -> None:
        """Anybody who meets an entry may write shadow cells, one after the other."""
        found = [key for key, commit in self.cells.items() if not commit and key[1] in self.entries]
        found = [key for key in found if key[1] not in self.sealed and key[1] >= self.horizon]
        if found:
            key = self.rng.choice(found)
            self.cells[key] = self.entries[key[1]]

    def complete(self) -> None:
        """Law 5."""
        whole = [start for start in self.entries if all(self.cells[row, start] for row in self.rows_of(start))]
        if whole:
            del self.entries[self.rng.choice(whole)]

    def sanitize(self) -> None:
        """Law 7: below H every committed cell has its shadow cell. What a dead client wrote late is left (R4)."""
        horizon = self.rng.randint(self.horizon, max(self.horizon, min(self.epoch, self.lease - 50)))
        for (row, start), commit in list(self.cells.items()):
            if start < horizon and not commit:
                if start in self.entries and start not in self.sealed and start >= self.horizon:
                    self.cells[row, start] = self.entries[start]
                elif self.rng.random() < 0.5:
                    del self.cells[row, start]
        self.horizon = horizon
        self.entries = {start: commit for start, commit in self.entries.items() if start >= horizon}

    def fail_over(self) -> None:
        """What it decided last was not durable, and may become so."""
        for start in [each for each in self.open if self.rng.random() < 0.5]:
            self.open.remove(start)
            self.in_flight[start] = self.tick()
        self.epoch = self.tick()

    def land(self) -> None:
        if self.in_flight:
            start = self.rng.choice(list(self.in_flight))
            commit = self.in_flight.pop(start)
            self.entries[start] = commit
            if start not in self.sealed and start >= self.horizon:
                self.decided[start] = commit

    def seal(self) -> None:
        """A reader of a later epoch."""
        lost = [start for start in (*self.open, *self.in_flight) if start <= self.epoch and start not in self.entries]
        if lost:
            self.sealed.add(self.rng.choice(lost))

    def step(self) -> None:
        self.rng.choice((self.begin, self.commit, self.heal, self.heal, self.complete, self.land, self.seal))()


def lived(seed: int) -> World:
    world = World(random.Random(seed))
    for _ in range(world.rng.randint(5, 40)):
        world.step()
        if world.rng.random() < 0.08:
            world.fail_over()
        if world.rng.random() < 0.05:
            world.sanitize()
    return world


def taken(world: World) -> tuple[int, BackupManifest, dict[int, int], Cells]:
    """A back-up in the order of `HBaseBackup`, with steps of others between. Nothing is sealed or cleaned that a reader
    at the moment needs: that is what the lease is for."""
    moment, epoch = world.tick(), world.epoch
    world.lease = moment
    some(world)
    entries: dict[int, int] = {}
    for bucket in (0, 1):  # regions of the commit table
        found = world.entries | dict.fromkeys(world.sealed, -1)
        entries |= {start: state for start, state in found.items() if start // 50 % 2 == bucket}
        some(world)
    horizon = world.horizon
    cells: Cells = {}
    for row in ROWS:
        some(world)
        cells |= {key: commit for key, commit in world.cells.items() if key[0] == row}
    manifest = BackupManifest("b", moment, epoch, horizon, world.tick(), "", "", "", ())
    return moment, manifest, entries, cells


def some(world: World) -> None:
    for _ in range(world.rng.randint(0, 6)):
        world.step()
    if world.rng.random() < 0.2:
        world.fail_over()
    if world.rng.random() < 0.2:
        world.sanitize()


def cut(manifest: BackupManifest, entries: dict[int, int], cells: Cells) -> Cells:
    """What is left of it, in stores in memory."""
    store, commits, catalog = MemoryStore(), MemoryCommitTable(), MemoryCatalog()
    store.create_table(TableInfo("t", (b"f",)))
    for (row, start), commit in cells.items():
        store.write_cells("t", start, [RowWrite(row, ((PLACE, b"x"),))])
        if commit:
            store.write_shadow_cells("t", [ShadowWrite(CellVersion(row, *PLACE, start), commit)])
    for start, state in entries.items():
        if state < 0:
            commits.seal(start)
        else:
            commits.put([(start, state)])
    tso = LocalTso(TsoStores(MemoryCommitTable(), MemoryLeaderState(), catalog))
    deployment = Deployment(store, commits, MemoryLeaderState(), catalog, tso, Settings())
    cut_copies(deployment, commits, manifest, [("t", 0)])
    found: Cells = {}
    for batch in store.scan("t", KeyRange()):
        for cell in batch.all_cells():
            found[cell.row, cell.version] = cell.commit_ts
    return found


def newest(cells: Cells, commits: dict[int, int]) -> Cells:
    """Of each row the newest version of these transactions."""
    best: Cells = {}
    for row in ROWS:
        starts = [start for each, start in cells if each == row and start in commits]
        if starts:
            best[row, max(starts)] = commits[max(starts)]
    return best


@pytest.mark.parametrize("seed", range(300))
def test_a_cut_backup_is_what_a_reader_at_its_moment_sees(seed: int) -> None:
    world = lived(seed)
    certain = dict(world.decided)
    moment, manifest, entries, cells = taken(world)
    left = cut(manifest, entries, cells)
    assert 0 not in left.values(), "each version that is left has its shadow cell"
    chosen = {start: commit for (_, start), commit in left.items()}
    late = {start for start in chosen if start not in certain}
    assert all(world.decided.get(start) == commit < moment for start, commit in chosen.items())
    wanted = certain | {start: world.decided[start] for start in late}
    assert left == newest(cells, wanted), "what was certain, and of each late one all or nothing"


def test_the_universe_has_late_entries_healed_in_part() -> None:
    """Else the law above would hold without the search for doubtful starts."""
    doubtful = 0
    for seed in range(300):
        world = lived(seed)
        _, manifest, entries, cells = taken(world)
        for start in {start for _, start in cells if manifest.horizon <= start <= manifest.epoch}:
            states = {bool(commit) for (_, each), commit in cells.items() if each == start}
            doubtful += states == {True, False} and start not in entries
    assert doubtful > 5


def test_a_cut_may_be_repeated() -> None:
    manifest = BackupManifest("b", 1000, 0, 0, 2000, "", "", "", ())
    cells = {(b"r0", 50): 0, (b"r0", 100): 1500, (b"r1", 150): 200}
    once = cut(manifest, {50: 60}, cells)
    assert once == {(b"r0", 50): 60, (b"r1", 150): 200}
    assert cut(replace(manifest, name="c"), {}, once) == once
