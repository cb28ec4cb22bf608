"""Every crash point of a folder's commits: random transactions, and around each commit of LMDB the folder as a crash
there would leave it, opened twice.

A loss of power before the root page is written keeps any of the commit's pages. The root page is written last, alone,
and within one sector.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from embedded_images import image_after_kill

import pyomid
from pyomid.database.database import Database
from pyomid.folder import EmbeddedStore
from pyomid.folder.environment import Environment

PAGE_BYTES = 4096
ROOT_PAGES = 2
CHECKED = 0.2
"""Of the commits."""
KEYS = [b"%02d" % number for number in range(40)]

Rows = dict[bytes, bytes]


class CrashedEverywhere:
    """A database under work, and which rows may be found after a crash."""

    def __init__(self, folder: Path, scratch: Path, seed: int, checked: float) -> None:
        self._rng = random.Random(seed)
        self._choice = random.Random(seed + 1)
        """Its own: what is looked at must not decide what is written."""
        self._folder, self._scratch, self._checked = folder, scratch, checked
        self.images = 0
        self.db = pyomid.connect(f"omid://{folder}?upkeepShare=0&completionLingerMs=0")
        self.db.create_table("t", ["f"])
        self.rows: Rows = {}
        self.allowed: list[Rows] = [{}]
        self._depth = 0

    def work(self, steps: int) -> None:
        for number in range(steps):
            step = self._rng.choice((self.write, self.write, self.write_large, self.roll_back, self.lose))
            step(number)
            if number % 20 == 19:
                self.db._core.deployment.tso.raise_watermark()
                self.db.compact()

    def write(self, number: int) -> None:
        after = dict(self.rows)
        with self.db.begin() as tx:
            for key in self._rng.sample(KEYS, self._rng.randrange(1, 8)):
                if self._rng.random() < 0.2:
                    tx.table("t").delete(key)
                    after.pop(key, None)
                else:
                    after[key] = b"%d" % number * self._rng.choice((1, 1, 2000))
                    tx.table("t").put(key, {b"f:v": after[key]})
            if number % 3 == 0:
                tx.table("t").get(self._rng.choice(KEYS), for_update=True)
            self.allowed = [self.rows, after]
        self.rows, self.allowed = after, [after]

    def write_large(self, number: int) -> None:
        after = dict(self.rows)
        with self.db.begin() as tx:
            for key in KEYS[number % 7 :: 7]:
                after[key] = b"large %d" % number
                tx.table("t").put(key, {b"f:v": after[key]})
                tx.flush()
            self.allowed = [self.rows, after]
        self.rows, self.allowed = after, [after]
        self.db.drain(20)

    def roll_back(self, number: int) -> None:
        tx = self.db.begin()
        tx.table("t").put(self._rng.choice(KEYS), {b"f:v": b"rolled back"})
        tx.flush()
        tx.rollback()

    def lose(self, number: int) -> None:
        """A transaction that a conflict ends."""
        tx, key = self.db.begin(), self._rng.choice(KEYS)
        tx.table("t").put(key, {b"f:v": b"lost"})
        if number % 2:
            tx.flush()
        after = self.rows | {key: b"first %d" % number}
        with self.db.begin() as first:
            first.table("t").put(key, {b"f:v": after[key]})
            self.allowed = [self.rows, after]
        self.rows, self.allowed = after, [after]
        with pytest.raises(pyomid.ConflictError):
            tx.commit()

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
        with ThreadPoolExecutor(1) as another:  # this thread is inside a commit, and pyomid refuses nested calls
            found = list(another.map(self.check, (bytes(torn), after)))
        assert self.allowed.index(found[0]) <= self.allowed.index(found[1])

    def check(self, content: bytes) -> Rows:
        """Two processes one after the other open the folder as a crash left it."""
        self.images += 1
        image = image_after_kill(self._folder, self._scratch / f"image-{self.images}")
        (image / "data" / "data.mdb").write_bytes(content)
        (image / "files.json").unlink()  # it is a copy
        found: list[Rows] = []
        for _ in range(2):
            with pyomid.connect(f"omid://{image}?upkeepShare=0") as db:
                found.append(rows_of(db))
                assert db.verify().ok
                with db.begin() as tx:
                    tx.table("t").put(b"new", {b"f:v": b"1"})
        assert found[0] in self.allowed, image
        assert found[0] == found[1]
        shutil.rmtree(image)
        return found[0]


def rows_of(db: Database) -> Rows:
    with db.begin() as tx:
        return {key: row[b"f:v"] for key, row in tx.table("t").scan() if key != b"new"}


def crash_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, seed: int, steps: int, checked: float) -> None:
    world = CrashedEverywhere(tmp_path / "db", tmp_path, seed, checked)
    environment, commit = world.db._core.deployment.store.environment, Environment._commit  # type: ignore[attr-defined]
    inside: list[int] = []
    failures: list[BaseException] = []

    def committed(self: Environment, group: object, began_s: float) -> None:
        if self is environment and not inside:
            inside.append(1)
            try:
                world.around(lambda: commit(self, group, began_s))  # type: ignore[arg-type]
            except BaseException as error:  # which the commit takes for an error of LMDB
                failures.append(error)
                raise
            finally:
                inside.clear()
        else:
            commit(self, group, began_s)  # type: ignore[arg-type]

    with monkeypatch.context() as steps_seen:
        steps_seen.setattr(Environment, "_commit", committed)
        try:
            world.work(steps)
            world.db.close()
        finally:
            if failures:
                raise failures[0]
    assert world.images > 10


@pytest.mark.fast
@pytest.mark.parametrize("seed", range(2))
def test_a_folder_crashed_anywhere_has_all_it_acknowledged(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_everywhere(tmp_path, monkeypatch, seed=seed, steps=60, checked=CHECKED)


@pytest.mark.soak
def test_a_folder_crashed_anywhere_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
