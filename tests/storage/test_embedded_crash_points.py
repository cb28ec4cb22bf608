"""Every crash point of the commit table: random work, and after each step towards the disk the folder as a crash there
would leave it, opened by a reader, by the next writer, and crashed again while that one recovers.

A step is a write of the log, waited for or in the background, a commit of LMDB, or a change of the shared index. A loss
of power keeps of the write that was under way any of its sectors and takes the index; a kill keeps both, the index as
far as it was changed.
"""

from __future__ import annotations

import ctypes
import os
import random
import select
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from embedded_images import image_after_kill, image_after_power_loss

from pyomid.storage.embedded import EmbeddedCommitTable
from pyomid.storage.embedded.commit_log import compacted, segment, writer
from pyomid.storage.embedded.commit_log.background_write import BackgroundWriter
from pyomid.storage.embedded.commit_log.index import TABLES, CommitIndex
from pyomid.storage.embedded.commit_log.index_kernels import SLOTS, TABLE_WORDS
from pyomid.storage.embedded.commit_log.segment import Rows, Segment
from pyomid.storage.embedded.environment import Environment
from pyomid.types import NOT_FOUND, SEALED

SECTOR_BYTES = 512
ROWS_MAX = 120
DEADLINE_S = 60
CHECKED = 0.08
"""Of the steps; each costs some 50 ms."""


class CrashedEverywhere:
    """The commit table under work, and what every look-up after a crash may find."""

    def __init__(self, folder: Path, scratch: Path, seed: int, checked: float) -> None:
        self._rng = random.Random(seed)
        self._choice = random.Random(seed + 1)
        """Its own: when the checkpoint thread runs must not decide what is written."""
        self._scratch = scratch
        self._checked = checked
        self._disk = threading.RLock()
        """Held for one step: an image is of one moment."""
        self._at_work = [folder]
        self.images = 0
        self.begun_images = 0
        """Of them, while a flush was on its way in the background."""
        self.allowed: dict[int, set[int]] = {}
        self._completed: set[int] = set()
        self._next = 0
        self._horizon = 0
        self.table = EmbeddedCommitTable(folder, writable=True)

    # ── work ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def work(self, steps: int) -> None:
        works = [self.put, self.put, self.put, self.seal, self.replace, self.delete, self.delete]
        for number in range(steps):
            if number % 40 == 39:
                self._rng.choice([self.put_bulk, self.delete_below])()
            else:
                self._rng.choice(works)()
            if number % 10 == 0:
                self.check_live()

    def fresh(self, count: int) -> list[int]:
        """Starts that are new, mostly in a record of the index each."""
        found = []
        for _ in range(count):
            self._next += self._rng.choice((1, SLOTS, SLOTS, 2 * SLOTS))
            found.append(50 * self._next)
        return found

    def known(self, *values: Callable[[int, set[int]], bool]) -> list[int]:
        starts = [start for start, may in self.allowed.items() if all(fits(start, may) for fits in values)]
        return self._rng.sample(starts, min(len(starts), self._rng.randrange(1, 12)))

    def put(self) -> None:
        self._put(self._rng.randrange(1, 30))

    def put_bulk(self) -> None:
        self._put(ROWS_MAX + self._rng.randrange(1, 50))

    def _put(self, count: int) -> None:
        starts = self.fresh(count)
        sealed = self.known(lambda start, may: may == {SEALED} and start >= self._horizon)
        entries = [(start, start + 5) for start in starts] + [(start, start + 7) for start in sealed]
        self._rng.shuffle(entries)
        self._may_be(starts, lambda start: {NOT_FOUND, start + 5})
        assert sorted(self._refused(entries)) == sorted(sealed)
        self._may_be(starts, lambda start: {start + 5})

    def _refused(self, entries: list[tuple[int, int]]) -> list[int]:
        """Half of them in the background, where this system and the room in the log allow it."""
        fileno = self.table.flush_ended_fileno()
        if fileno is None or self._rng.random() < 0.5 or not self.table.begin_flush(np.array(entries, dtype=np.int64)):
            return self.table.put(entries)
        poll = select.poll()
        poll.register(fileno, select.POLLIN)
        while True:
            assert poll.poll(1000 * DEADLINE_S), "nobody told of the end"
            if (ended := self.table.end_flush()) is not None:
                return ended[0]

    def seal(self) -> None:
        starts = self.fresh(self._rng.randrange(1, 8))
        self._may_be(starts, lambda start: {NOT_FOUND, SEALED})
        assert all(outcome.placed for outcome in self.table.seal_many(starts))
        self._may_be(starts, lambda start: {SEALED})

    def replace(self) -> None:
        """Branches of a decided commit: over marks, and where there is nothing."""
        sealed = self.known(lambda start, may: may == {SEALED} and start >= self._horizon)
        starts = [*sealed, *self.fresh(self._rng.randrange(0, 5))]
        if starts:
            self._may_be(starts, lambda start: {SEALED if start in sealed else NOT_FOUND, start + 9})
            for start in starts:
                self.table.put_branches([start], start + 9)
            self._may_be(starts, lambda start: {start + 9})

    def delete(self) -> None:
        starts = self.known(lambda start, may: len(may) == 1 and min(may) > 0 and start >= self._horizon)
        self._may_be(starts, lambda start: {NOT_FOUND, *self.allowed[start]})
        self._completed.update(starts)
        self.table.delete(starts)

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

    @contextmanager
    def step(self) -> Iterator[bool]:
        """One step towards the disk; whether its crash is looked at."""
        with self._disk:
            yield len(self._at_work) < 3 and self._choice.random() < self._checked

    def image(self, *, power_lost: bool) -> Path:
        self.images += 1
        make = image_after_power_loss if power_lost else image_after_kill
        return make(self._at_work[-1], self._scratch / f"image-{self.images}")

    def torn_write(self, name: str, begin: int, blocks: bytes) -> None:
        """Any sectors of it are on the disk, the rest is not."""
        image = self.image(power_lost=True)
        path = image / "commits" / name
        content = bytearray(path.read_bytes())
        kept = self._choice.random()
        for at in range(0, len(blocks), SECTOR_BYTES):
            if self._choice.random() < kept:
                content[begin + at : begin + at + SECTOR_BYTES] = blocks[at : at + SECTOR_BYTES]
        path.write_bytes(content)
        self.check(image)

    def half_placed(self, number: int, rows: Rows) -> None:
        image = self.image(power_lost=False)
        self.change_index(image, lambda index: index.place(number, rows[: self._choice.randrange(len(rows) + 1)]))
        self.check(image)

    def half_emptied(self, number: int) -> None:
        """Only what the writer's own code would do: the sequence number first, then some of the words."""

        def change(index: CommitIndex) -> None:
            index.words[2 + number] |= 1
            first = TABLES[number]
            index.array[first : first + self._choice.randrange(TABLE_WORDS)] = 0

        image = self.image(power_lost=False)
        self.change_index(image, change)
        self.check(image)

    def change_index(self, image: Path, change: Callable[[CommitIndex], object]) -> None:
        index = CommitIndex(image / "commits", writable=True)
        change(index)
        index.close()

    def check(self, image: Path) -> None:
        """By a reader, by the next writer, and by the one after it. What one of them found, no later one finds less."""
        self._at_work.append(image)
        found: dict[int, int] = {}
        try:
            for writable in (False, True, True):
                table = EmbeddedCommitTable(image, writable=writable)
                before, found = found, self.check_table(table, image)
                for start, value in before.items():
                    may = {value} if value and start not in self._completed else self.allowed[start]
                    assert found[start] in may or (value == SEALED and found[start] > 0), (image, start)
                if writable:
                    new = 50 * (self._next + 1_000_000)
                    sealed = [start for start, may in self.allowed.items() if may == {SEALED}]
                    assert table.put([(new, new + 1), *((start, start + 3) for start in sealed)]) == sealed
                    assert table.lookup([new]) == [new + 1]
                table.close()
        finally:
            self._at_work.pop()
        shutil.rmtree(image)

    def check_table(self, table: EmbeddedCommitTable, where: Path) -> dict[int, int]:
        allowed = dict(self.allowed)
        found = dict(zip(allowed, table.lookup(list(allowed)), strict=True))
        entries = dict(table.entries())
        for start, may in allowed.items():
            assert found[start] in may, (where.name, start, found[start], may)
            assert entries.get(start, NOT_FOUND) in may, (where.name, start)
        return found

    def check_live(self) -> None:
        """Without a crash a completion is seen, at the latest when its table had its checkpoint."""
        self.check_table(self.table, self._at_work[0])
        assert self.table._writer is not None
        if (checkpointer := self.table._writer._checkpointer) is not None:
            checkpointer.join(DEADLINE_S)
        completed = [start for start, may in self.allowed.items() if NOT_FOUND in may]
        assert self.table.lookup(completed) == [NOT_FOUND] * len(completed)


def crash_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, seed: int, steps: int, checked: float) -> None:
    """Small segments and tables, so that they are switched often, and LMDB gets them in pieces."""
    monkeypatch.setattr(segment, "SEGMENT_BYTES", 8 * segment.BLOCK_BYTES)
    monkeypatch.setattr(writer, "ROWS_MAX", ROWS_MAX)
    monkeypatch.setattr(writer, "_RECORDS_MAX", 150)
    monkeypatch.setattr(compacted, "_WRITE_ROWS_MAX", 40)
    world = CrashedEverywhere(tmp_path / "db", tmp_path, seed, checked)
    assert world.table._writer is not None
    writes_in_background = world.table.flush_ended_fileno() is not None and world.table._writer._segments[0]._direct
    write, commit = Segment._write, Environment._commit
    place, empty, begin = CommitIndex.place, CommitIndex.empty, BackgroundWriter.begin
    failures: list[BaseException] = []

    def look(crash: Callable[[], None]) -> None:
        try:
            crash()
        except BaseException as error:  # one in the checkpoint thread must not pass unseen
            failures.append(error)
            raise

    def written(self: Segment, begin: int, end: int) -> None:
        first, last = begin - begin % segment.BLOCK_BYTES, min(-(-end // 4096) * 4096, segment.SEGMENT_BYTES)
        with world.step() as is_checked:
            if is_checked:
                look(lambda: world.torn_write(self._path.name, first, bytes(self._view[first:last])))
            write(self, begin, end)

    def begun(self: BackgroundWriter, file: int, address: int, count: int, offset: int) -> bool:
        name = Path(os.readlink(f"/proc/self/fd/{file}")).name
        with world.step() as is_checked:
            if is_checked:
                world.begun_images += 1
                look(lambda: world.torn_write(name, offset, ctypes.string_at(address, count)))
            return begin(self, file, address, count, offset)

    def committed(self: Environment, group: list[object], began_s: float) -> None:
        with world.step() as is_checked:
            commit(self, group, began_s)  # type: ignore[arg-type]
            if is_checked and self.folder == world._at_work[-1] / "commits":
                look(lambda: world.check(world.image(power_lost=world._choice.random() < 0.5)))

    def placed(self: CommitIndex, number: int, rows: Rows) -> int:
        with world.step() as is_checked:
            if is_checked and world._at_work[-1] == tmp_path / "db":
                look(lambda: world.half_placed(number, rows))
            return place(self, number, rows)

    def emptied(self: CommitIndex, number: int) -> None:
        with world.step() as is_checked:
            if is_checked and world._at_work[-1] == tmp_path / "db":
                look(lambda: world.half_emptied(number))
            empty(self, number)

    with monkeypatch.context() as steps_seen:
        steps_seen.setattr(Segment, "_write", written)
        steps_seen.setattr(BackgroundWriter, "begin", begun)
        steps_seen.setattr(Environment, "_commit", committed)
        steps_seen.setattr(CommitIndex, "place", placed)
        steps_seen.setattr(CommitIndex, "empty", emptied)
        world.work(steps)
        world.table.close()
    assert failures == []
    assert world.images > 10
    assert world.begun_images > 0 or not writes_in_background
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
        crash_everywhere(tmp_path / str(seed), monkeypatch, seed=seed, steps=200, checked=0.3)
