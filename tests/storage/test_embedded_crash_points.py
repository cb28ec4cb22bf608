"""Every crash point of the commit table: random work, and around each commit of LMDB the folder as a crash there would
leave it, opened by a reader and by two writers after one another.

A loss of power before the root page is written keeps any of the commit's pages. The root page is written last, alone,
and within one sector.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from embedded_images import image_after_kill
from pyomid.storage.embedded.commit_entries import RECORD_TIMESTAMPS

from pyomid.storage.embedded import EmbeddedCommitTable, EmbeddedStore
from pyomid.storage.embedded.environment import Environment
from pyomid.types import NOT_FOUND, SEALED

PAGE_BYTES = 4096
ROOT_PAGES = 2
CHECKED = 0.3
"""Of the commits."""


class CrashedEverywhere:
    """The commit table under work, and what every look-up after a crash may find."""

    def __init__(self, folder: Path, scratch: Path, seed: int, checked: float) -> None:
        self._rng = random.Random(seed)
        self._choice = random.Random(seed + 1)
        """Its own: what is looked at must not decide what is written."""
        self._folder = folder
        self._scratch = scratch
        self._checked = checked
        self.images = 0
        self.allowed: dict[int, set[int]] = {}
        self._next = 0
        self._horizon = 0
        self.table = EmbeddedCommitTable(folder, writable=True)

    def work(self, steps: int) -> None:
        works = [self.put, self.put, self.put, self.seal, self.replace, self.delete, self.delete]
        for number in range(steps):
            if number % 40 == 39:
                self.delete_below()
            else:
                self._rng.choice(works)()
            if number % 10 == 0:
                self.check_table(self.table, self._folder)

    def fresh(self, count: int) -> list[int]:
        """Starts that are new, mostly in a record of their own."""
        found = []
        for _ in range(count):
            self._next += self._rng.choice((1, RECORD_TIMESTAMPS, 2 * RECORD_TIMESTAMPS))
            found.append(50 * self._next)
        return found

    def known(self, fits: Callable[[int, set[int]], bool]) -> list[int]:
        starts = [start for start, may in self.allowed.items() if fits(start, may)]
        return self._rng.sample(starts, min(len(starts), self._rng.randrange(1, 12)))

    def sealed(self) -> list[int]:
        return self.known(lambda start, may: may == {SEALED} and start >= self._horizon)

    def put(self) -> None:
        starts, sealed = self.fresh(self._rng.randrange(1, 60)), self.sealed()
        entries = [(start, start + 5) for start in starts] + [(start, start + 7) for start in sealed]
        self._rng.shuffle(entries)
        self._may_be(starts, lambda start: {NOT_FOUND, start + 5})
        assert sorted(self.table.put(entries)) == sorted(sealed)
        self._may_be(starts, lambda start: {start + 5})

    def seal(self) -> None:
        starts = self.fresh(self._rng.randrange(1, 8))
        self._may_be(starts, lambda start: {NOT_FOUND, SEALED})
        assert all(outcome.placed for outcome in self.table.seal_many(starts))
        self._may_be(starts, lambda start: {SEALED})

    def replace(self) -> None:
        """Branches of a decided commit: over marks, and where there is nothing."""
        sealed = self.sealed()
        for start in [*sealed, *self.fresh(self._rng.randrange(0, 5))]:
            self._may_be([start], lambda start: {SEALED if start in sealed else NOT_FOUND, start + 9})
            self.table.put_branches([start], start + 9)
            self._may_be([start], lambda start: {start + 9})

    def delete(self) -> None:
        """At once, or with the next write: a completion may be lost, and is never half done."""
        starts = self.known(lambda start, may: len(may) == 1 and min(may) > 0 and start >= self._horizon)
        self._may_be(starts, lambda start: {NOT_FOUND, *self.allowed[start]})
        if self._rng.random() < 0.5:
            self.table.delete(starts)
            self._may_be(starts, lambda start: {NOT_FOUND})
        else:
            assert not len(self.table.delete_at_once(np.array(starts, dtype=np.int64)))

    def delete_below(self) -> None:
        ordered = sorted(self.allowed)
        self._horizon = ordered[len(ordered) // 3]
        below = [start for start in ordered if start < self._horizon]
        self._may_be(below, lambda start: {NOT_FOUND, *self.allowed[start]})
        self.table.delete_below(self._horizon)
        self._may_be(below, lambda start: {NOT_FOUND})

    def _may_be(self, starts: Sequence[int], found: Callable[[int], set[int]]) -> None:
        for start in starts:
            self.allowed[start] = found(start)

    # ── crashes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def around(self, commit: Callable[[], None]) -> None:
        """Performs one commit; a crash before its root page, and one after it."""
        if self._choice.random() >= self._checked:
            return commit()
        data = self._folder / "data" / "data.mdb"
        before = data.read_bytes()
        commit()
        after = data.read_bytes()
        torn = bytearray(before.ljust(len(after), b"\0"))
        kept = self._choice.random()
        for at in range(ROOT_PAGES * PAGE_BYTES, len(after), PAGE_BYTES):
            if self._choice.random() < kept:
                torn[at : at + PAGE_BYTES] = after[at : at + PAGE_BYTES]
        for content in (torn, after):
            self.images += 1
            image = image_after_kill(self._folder, self._scratch / f"image-{self.images}")
            (image / "data" / "data.mdb").write_bytes(content)
            self.check(image)

    def check(self, image: Path) -> None:
        """By a reader, by the next writer, and by the one after it. What one of them found, no later one finds less."""
        found: dict[int, int] = {}
        for writable in (False, True, True):
            table = EmbeddedCommitTable(image, writable=writable)
            before, found = found, self.check_table(table, image)
            assert {start: found[start] for start in before} == before
            if writable:
                new = 50 * (self._next + 1_000_000)
                sealed = [start for start, may in self.allowed.items() if may == {SEALED}]
                assert table.put([(new, new + 1), *((start, start + 3) for start in sealed)]) == sealed
                assert table.lookup([new]) == [new + 1]
            table.close()
        shutil.rmtree(image)

    def check_table(self, table: EmbeddedCommitTable, where: Path) -> dict[int, int]:
        allowed = dict(self.allowed)
        found = dict(zip(allowed, table.lookup(list(allowed)), strict=True))
        entries = dict(table.entries())
        for start, may in allowed.items():
            assert found[start] in may, (where.name, start, found[start], may)
            assert entries.get(start, NOT_FOUND) == found[start], (where.name, start)
        return found


def crash_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, seed: int, steps: int, checked: float) -> None:
    world = CrashedEverywhere(tmp_path / "db", tmp_path, seed, checked)
    environment, commit = world.table._environment, Environment._commit

    def committed(self: Environment, group: object, began_s: float) -> None:
        if self is environment:
            world.around(lambda: commit(self, group, began_s))  # type: ignore[arg-type]
        else:
            commit(self, group, began_s)  # type: ignore[arg-type]

    with monkeypatch.context() as steps_seen:
        steps_seen.setattr(Environment, "_commit", committed)
        steps_seen.setattr("pyomid.storage.embedded.commit_table.COMPLETION_S", 60.0)
        world.work(steps)
        world.table.close()
    assert world.images > 10
    world.check(image_after_kill(tmp_path / "db", tmp_path / "closed"))


@pytest.mark.fast
@pytest.mark.parametrize("seed", range(2))
def test_commit_table_crashed_anywhere_has_all_it_acknowledged(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_everywhere(tmp_path, monkeypatch, seed=seed, steps=100, checked=CHECKED)


@pytest.mark.soak
def test_commit_table_crashed_anywhere_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        crash_everywhere(tmp_path / str(seed), monkeypatch, seed=seed, steps=200, checked=1.0)


@pytest.mark.fast
def test_lmdb_syncs_pages_and_root_before_anybody_sees_a_commit(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "db")
    flags = store._environment._lmdb.flags()
    assert (flags["sync"], flags["metasync"], flags["map_async"], flags["writemap"]) == (True, True, False, False)
    store.close()
