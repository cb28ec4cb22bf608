"""The embedded folder: layout, limits, damage, growth, forks, and who shares an environment with whom."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import numpy as np
import pytest

import pyomid
from conformance import (
    FAMILIES,
    A,
    B,
    column_write,
    in_forked_child,
    run_together,
    scanned,
    written_batch,
)
from pyomid import system
from pyomid.errors import Corruption, FolderMissing, Misuse, OmidError, StoreFull, Unavailable
from pyomid.folder import (
    EmbeddedCatalog,
    EmbeddedStore,
    open_folder,
    tables,
)
from pyomid.folder import environment as environments
from pyomid.folder.layout import CELLS, EPOCH, LAYOUT_VERSION
from pyomid.folder.lmdb_files import open_database
from pyomid.types import Cell, Column, KeyRange, TableInfo

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(tmp_path)
    store.create_table(TableInfo("t", FAMILIES))
    yield store
    store.close()


# Layout


def test_new_folder_is_made_with_its_parents_and_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "where"
    assert open_folder(folder) == folder
    assert open_folder(folder, create=False) == folder
    assert (folder / "LAYOUT").read_text() == f"pyomid embedded layout {LAYOUT_VERSION}\n"


def test_folder_that_nobody_made_is_refused_when_it_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FolderMissing, match="there is no database in"):
        EmbeddedStore(tmp_path, create=False)


@pytest.mark.parametrize("version", [LAYOUT_VERSION - 1, 999])
def test_another_layout_is_refused_by_name(tmp_path: Path, version: int) -> None:
    open_folder(tmp_path)
    (tmp_path / "LAYOUT").write_text(f"pyomid embedded layout {version}\n")
    with pytest.raises(Misuse, match=f"layout {version}, but this pyomid version reads layout {LAYOUT_VERSION}"):
        EmbeddedStore(tmp_path)


def test_other_content_in_the_layout_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "LAYOUT").write_text("something else")
    with pytest.raises(Misuse, match="not a pyomid folder"):
        EmbeddedStore(tmp_path)


def test_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Misuse, match="is not a folder"):
            EmbeddedStore(path)


def test_folder_without_permission_is_refused(tmp_path: Path) -> None:
    def as_nobody() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        open_folder(tmp_path)

    if os.getuid() != 0:
        tmp_path.chmod(0o555)
    assert in_forked_child(as_nobody) == "Misuse"


@pytest.mark.parametrize(("kind", "refused"), [("nfs4", True), ("fuse.sshfs", True), ("xfs", False)])
def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, refused: bool
) -> None:
    """As the kernel's table of mounts says, also of a folder that is to be created."""
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 2 999:1 / / rw - nfs4 else rw\n"
        f"3 4 {os.major(device)}:{os.minor(device)} / {tmp_path} rw,relatime shared:1 - {kind} host:/ rw\n"
    )
    monkeypatch.setattr(system, "MOUNTS", str(mounts))
    folder = tmp_path / "in" / "db"
    if not refused:
        open_folder(folder)
        return
    with pytest.raises(Misuse, match=rf"network file system \({kind}\).*local disk"):
        open_folder(folder)
    assert not folder.parent.exists()


def test_folder_whose_making_was_cut_short_is_completed(tmp_path: Path) -> None:
    open_folder(tmp_path)
    (tmp_path / "LAYOUT").unlink()
    (tmp_path / "data" / "data.mdb").unlink()
    EmbeddedStore(tmp_path).close()
    assert open_folder(tmp_path, create=False) == tmp_path
    assert (tmp_path / "data" / "data.mdb").exists()


OPENS = """
import sys
from pyomid.errors import Unavailable
from pyomid.folder import EmbeddedStore
try:
    store = EmbeddedStore(sys.argv[1], create=False)
except Unavailable as error:
    print(error, flush=True)
else:
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs to number processes anew")
def test_processes_of_one_number_are_told_how_to_share(store: EmbeddedStore, tmp_path: Path) -> None:
    """Each is number 1 in a container of its own: LMDB cannot tell them apart, and lets in the first one only."""
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", OPENS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        if not (said := first.stdout.readline()):
            pytest.skip("this machine lets nobody number processes anew")
        assert said == "open\n"
        second = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        first.communicate("", timeout=30)
    assert "the same process ID as this one, 1" in second.stdout
    assert "--pid=container:NAME" in second.stdout


def test_many_processes_make_one_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_write_one, args=(str(tmp_path / "new"), number)) for number in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    store = EmbeddedStore(tmp_path / "new")
    assert [row for row, _ in scanned(store, "t")] == [b"0", b"1", b"2", b"3"]
    store.close()


def _write_one(folder: str, number: int) -> None:
    store = EmbeddedStore(folder)
    store.create_table(TableInfo("t", FAMILIES))
    store.write_cells("t", 50, [column_write(b"%d" % number, (Column(b"f", b"c%d" % number), b"v"))])


# Limits


def test_row_key_limit_counts_zero_bytes_twice(store: EmbeddedStore) -> None:
    limit = store.limits.row_bytes_max
    store.write_cells("t", 50, [column_write(b"\x00" * (limit // 2), (A, b"1"))])
    bad = column_write(b"\x00" * (limit // 2 + 1), (A, b"1"))
    with pytest.raises(Misuse, match="a zero byte counts twice"):
        store.write_cells("t", 50, [bad])
    with pytest.raises(Misuse, match="a zero byte counts twice"):
        store.write_batch("t", 50, written_batch(bad))


def test_batch_out_of_order_is_refused(store: EmbeddedStore) -> None:
    for rows in ([b"b", b"a"], [b"a", b"a"]):
        batch = written_batch(*(column_write(row, (A, b"1")) for row in rows))
        with pytest.raises(Misuse, match="ascend"):
            store.write_batch("t", 50, batch)
    assert scanned(store, "t") == []


def test_too_many_different_columns_are_refused(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COLUMNS_MAX", 10)
    row = column_write(b"r", *((Column(b"f", b"%d" % i), b"v") for i in range(11)))
    with pytest.raises(Misuse, match="at most 10 different columns"):
        store.write_cells("t", 50, [row])
    store.write_cells("t", 50, [row._replace(cells=row.cells[:10])])
    assert len(store.read_rows("t", [b"r"])[0]) == 10


def test_columns_of_another_process_are_learned(tmp_path: Path, store: EmbeddedStore) -> None:
    store.write_cells("t", 50, [column_write(b"0", (A, b"v"))])
    assert len(scanned(store, "t")) == 1
    child = multiprocessing.get_context("spawn").Process(target=_write_one, args=(str(tmp_path), 1))
    child.start()
    child.join()
    new = Column(b"f", b"c1")
    assert store.read_rows("t", [b"1"]) == [[Cell(b"1", *new, 50, b"v")]]
    assert scanned(store, "t", columns=[new]) == [(b"1", {Cell(b"1", *new, 50, b"v")})]


# Damage


def test_damaged_record_is_named_by_every_reader(store: EmbeddedStore) -> None:
    store.write_cells("t", 150, [column_write(b"good", (A, b"v")), column_write(b"h\xff", (A, b"v"), (B, b"w"))])
    damage(store, b"h\xff", lambda value: value[:-1] + bytes([value[-1] ^ 1]))
    readers: list[Callable[[], object]] = [
        lambda: store.read_rows("t", [b"h\xff"]),
        lambda: list(store.scan("t", KeyRange())),
        lambda: store.write_cells("t", 150, [column_write(b"h\xff", (A, b"new"))]),
    ]
    for read in readers:
        with pytest.raises(Corruption, match=r"row 'h\\xff', version 150") as raised:
            read()
        assert raised.value.values == {"row": b"h\xff", "version": 150}
    assert store.read_rows("t", [b"good"]) == [[Cell(b"good", *A, 150, b"v")]]


def test_damaged_record_is_not_cleaned(store: EmbeddedStore) -> None:
    store.write_cells("t", 150, [column_write(b"r", (A, b"v"), (B, b"w"))])
    (batch,) = store.scan("t", KeyRange())
    damage(store, b"r", lambda value: value[:-1])
    with pytest.raises(Corruption, match="version 150"):
        store.clean_batch("t", batch, np.array([], dtype=np.int64), np.array([0], dtype=np.int64))


def test_a_damaged_state_is_said(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db"
    with pyomid.connect(url) as db:
        db.create_table("t", ["f"])
    with lmdb.open(str(tmp_path / "db" / "data"), max_dbs=8) as raw:
        with raw.begin(open_database(raw, EPOCH), write=True) as transaction:
            transaction.put(b"state", transaction.get(b"state")[1:])
    with pytest.raises(Corruption, match="the folder's state has 39 bytes, not 40"):
        pyomid.connect(url)


def damage(store: EmbeddedStore, row: bytes, change: Callable[[bytes], bytes]) -> None:
    """Changes the stored bytes of the one record of `row`."""
    environment = store._environment

    def write(transaction: object) -> None:
        with transaction.cursor(environment.databases[CELLS]) as cursor:  # type: ignore[attr-defined]
            (key,) = (key for key, _ in cursor if row in key)
            cursor.put(key, change(cursor.get(key)))

    environment.write(write)


# Room


def test_full_map_is_store_full_and_the_store_stays_whole(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path, map_bytes=1 << 20)
    store.create_table(TableInfo("t", FAMILIES))
    written = fill(store)
    assert 0 < written < ROWS_OF_FILL
    assert [row for row, _ in scanned(store, "t")] == [b"%06d" % i for i in range(written)]
    store.close()
    store = EmbeddedStore(tmp_path, map_bytes=1 << 24)
    store.write_cells("t", 100, [column_write(b"more", (A, b"v" * 1000))])
    assert len(scanned(store, "t")) == written + 1
    store.close()


FILL_A_SMALL_MAP = """
import resource, sys
sys.path[:0] = {path!r}
from test_embedded_folder import A, column_write
from pyomid.errors import StoreFull
from pyomid.folder import EmbeddedStore
from pyomid.types import TableInfo
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))
store = EmbeddedStore({folder!r}, map_bytes=1 << 30)
store.create_table(TableInfo("t", (b"f", b"g")))
for i in range(100):
    try:
        store.write_cells("t", 50, [column_write(b"%06d" % i, (A, bytes(1 << 20)))])
    except StoreFull as error:
        print(error)
        break
"""


def test_a_full_map_names_the_option_and_a_limited_address_space(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "small", map_bytes=1 << 20)
    store.create_table(TableInfo("t", FAMILIES))
    writes = [column_write(b"%06d" % i, (A, b"v" * 10_000)) for i in range(ROWS_OF_FILL)]
    with pytest.raises(StoreFull, match=r"map has 0.000977 GiB\. .* connect with a greater option mapSizeGib"):
        store.write_cells("t", 50, writes)
    store.close()
    code = FILL_A_SMALL_MAP.format(path=sys.path, folder=str(tmp_path / "limited"))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "mapSizeGib asks for 1 GiB, but this process's address space is limited" in run.stdout


ROWS_OF_FILL = 300


def fill(store: EmbeddedStore) -> int:
    """Rows of 10 000 bytes until the store is full; how many were acknowledged."""
    for i in range(ROWS_OF_FILL):
        try:
            store.write_cells("t", 50, [column_write(b"%06d" % i, (A, b"v" * 10_000))])
        except StoreFull:
            return i
    return ROWS_OF_FILL


FILL_A_SMALL_DISK = """
import resource, signal, sys
sys.path[:0] = {path!r}
from test_embedded_folder import A, column_write, fill, scanned
from pyomid.folder import EmbeddedStore
from pyomid.types import TableInfo
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = EmbeddedStore({folder!r})
store.create_table(TableInfo("t", (b"f", b"g")))
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
written = fill(store)
assert [row for row, _ in scanned(store, "t")] == [b"%06d" % i for i in range(written)]
resource.setrlimit(resource.RLIMIT_FSIZE, before)
store.write_cells("t", 100, [column_write(b"more", (A, b"v" * 1000))])
print(written)
"""


def test_full_disk_is_store_full_and_the_store_stays_whole(tmp_path: Path) -> None:
    """The disk's end is played by the largest size that the process may give a file."""
    code = FILL_A_SMALL_DISK.format(path=sys.path, folder=str(tmp_path))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    written = int(run.stdout)
    assert 0 < written < ROWS_OF_FILL
    store = EmbeddedStore(tmp_path)
    assert [row for row, _ in scanned(store, "t")] == [*(b"%06d" % i for i in range(written)), b"more"]
    store.close()


def test_map_that_another_process_enlarged_is_adopted(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path, map_bytes=1 << 20)
    store.create_table(TableInfo("t", FAMILIES))
    child = multiprocessing.get_context("spawn").Process(target=_write_much, args=(str(tmp_path),))
    child.start()
    child.join()
    assert len(scanned(store, "t")) == ROWS_OF_FILL
    store.write_cells("t", 100, [column_write(b"mine", (A, b"v"))])
    store.close()


def _write_much(folder: str) -> None:
    assert fill(EmbeddedStore(folder, map_bytes=1 << 26)) == ROWS_OF_FILL


def test_environment_that_lmdb_gave_up_is_opened_again(store: EmbeddedStore) -> None:
    """LMDB refuses all further work after it could not write its root page."""
    store.write_cells("t", 50, [column_write(b"r", (A, b"v"))])
    environment = store._environment

    def panic(transaction: object) -> None:
        raise lmdb.PanicError("as if the root page could not be written", 0)

    with pytest.raises(Unavailable):
        environment.write(panic)
    before = environment._lmdb
    store.write_cells("t", 50, [column_write(b"s", (A, b"v"))])
    assert environment._lmdb is not before
    assert [row for row, _ in scanned(store, "t")] == [b"r", b"s"]


# Readers, forks, sharing


def test_no_read_transaction_outlives_a_call(store: EmbeddedStore) -> None:
    store.write_cells("t", 50, [column_write(b"%03d" % i, (A, b"v")) for i in range(50)])
    batches = store.scan("t", KeyRange(), batch_rows_max=10)
    next(batches)
    store.read_rows("t", [b"001"])
    assert "no active readers" in store._environment._lmdb.readers()
    batches.close()


def test_pages_are_used_again_while_a_scan_is_open(store: EmbeddedStore) -> None:
    """A read transaction kept open would pin every page that is replaced meanwhile."""
    store.write_cells("t", 50, [column_write(b"%03d" % i, (A, b"v" * 500)) for i in range(100)])
    batches = store.scan("t", KeyRange(), batch_rows_max=10)
    next(batches)
    sizes = []
    for version in range(100, 600):
        store.write_cells("t", 100, [column_write(b"%03d" % (version % 100), (A, b"%d" % version * 100))])
        sizes.append(store._environment._lmdb.info()["last_pgno"])
    assert sizes[-1] < sizes[100] + 20
    batches.close()


def test_reader_that_was_killed_pins_no_pages_for_long(
    tmp_path: Path, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_die_while_reading, args=(str(tmp_path),))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert str(child.pid) in store._environment._lmdb.readers()
    monkeypatch.setattr(environments, "_READER_CHECK_S", 0.0)
    store.write_cells("t", 50, [column_write(b"r", (A, b"v"))])
    assert "no active readers" in store._environment._lmdb.readers()


def _die_while_reading(folder: str) -> None:
    EmbeddedStore(folder)._environment.read(lambda transaction: os.kill(os.getpid(), signal.SIGKILL))


def test_more_readers_than_lmdb_takes_by_default_read_at_once(store: EmbeddedStore) -> None:
    store.write_cells("t", 50, [column_write(b"r", (A, b"v"))])
    together = threading.Barrier(200)
    environment, places = store._environment, []
    run_together(*[lambda: places.append(environment.read(lambda transaction: together.wait(60)))] * 200)
    assert sorted(places) == list(range(200))


def test_fork_under_load_harms_neither_side(tmp_path: Path, store: EmbeddedStore) -> None:
    stop, errors = threading.Event(), []

    def work(number: int) -> None:
        version = 50
        while not stop.is_set():
            version += 50
            try:
                store.write_cells("t", version, [column_write(b"%d" % number, (A, b"%d" % version))])
                (cells,) = store.read_rows("t", [b"%d" % number])
                assert max(cell.version for cell in cells) == version
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()

    def in_child() -> None:
        own = EmbeddedStore(tmp_path)
        own.write_cells("t", 50, [column_write(b"child", (A, b"v"))])
        assert own.read_rows("t", [b"child"]) == [[Cell(b"child", *A, 50, b"v")]]

    outcomes = [in_forked_child(in_child) for _ in range(10)]
    stop.set()
    for thread in threads:
        thread.join()
    assert outcomes == [""] * 10
    assert errors == []


def test_handles_of_one_process_share_an_environment_until_the_last_is_closed(tmp_path: Path) -> None:
    first, second, catalog = EmbeddedStore(tmp_path), EmbeddedStore(tmp_path), EmbeddedCatalog(tmp_path)
    first.create_table(TableInfo("t", FAMILIES))
    for _ in range(2):  # closing twice gives back once
        first.close()
    second.write_cells("t", 50, [column_write(b"r", (A, b"v"))])
    second.close()
    assert catalog.tables() == []
    catalog.close()
    gc.collect()
    third = EmbeddedStore(tmp_path)
    assert len(scanned(third, "t")) == 1
    third.close()


def test_closed_store_is_refused(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path)
    store.create_table(TableInfo("t", FAMILIES))
    store.close()
    with pytest.raises(Misuse, match="was closed"):
        store.read_rows("t", [b"r"])
    with pytest.raises(Misuse, match="was closed"):
        store.write_cells("t", 50, [column_write(b"r", (A, b"v"))])


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_write_that_meets_the_close_at_its_turn_is_refused(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    take = environments.WriterTurn.try_to_take

    def beside_the_close(turn: environments.WriterTurn) -> bool:
        is_ours = is_taken and take(turn)
        store.close()
        return is_ours or take(turn)

    monkeypatch.setattr(environments.WriterTurn, "try_to_take", beside_the_close)
    with pytest.raises(Misuse, match="was closed"):
        store.write_cells("t", 50, [column_write(b"r", (A, b"v"))])


def test_interrupted_writer_says_so_to_all_it_wrote_for(store: EmbeddedStore) -> None:
    def interrupt(transaction: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store._environment.write(interrupt)
    store.write_cells("t", 50, [column_write(b"r", (A, b"v"))])
    assert len(scanned(store, "t")) == 1


def test_failing_member_of_a_group_commit_takes_nobody_along(store: EmbeddedStore) -> None:
    """Its group is undone, and everyone else is written on their own."""
    environment, gate = store._environment, threading.Event()
    outcomes: dict[str, OmidError | None] = {}

    def fails(transaction: object) -> None:
        raise Misuse("on purpose")

    def run(name: str, work: Callable[[], object]) -> None:
        try:
            work()
            outcomes[name] = None
        except OmidError as error:
            outcomes[name] = error

    works = {
        "first": lambda: environment.write(lambda transaction: gate.wait()),
        "good": lambda: store.write_cells("t", 50, [column_write(b"good", (A, b"v"))]),
        "bad": lambda: environment.write(fails),
        "other": lambda: store.write_cells("t", 50, [column_write(b"other", (A, b"v"))]),
    }
    threads = [threading.Thread(target=run, args=work) for work in works.items()]
    threads[0].start()
    for thread in threads[1:]:
        thread.start()
    while len(environment._queue) < 3 and len(outcomes) == 0:
        pass
    gate.set()
    for thread in threads:
        thread.join()
    assert {name for name, error in outcomes.items() if error is not None} == {"bad"}
    assert [row for row, _ in scanned(store, "t")] == [b"good", b"other"]


# Regions


def test_large_tables_have_regions_that_stay_and_split(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path, region_rows=2000)
    store.create_table(TableInfo("t", FAMILIES))
    write_keys(store, range(0, 20_000, 2))
    first = store.regions("t")
    assert 3 <= len(first) <= 8
    sizes = [len(scanned(store, "t", region)) for region in first]
    assert sum(sizes) == 10_000
    assert max(sizes) < 6000
    assert store.regions("t") == first
    write_keys(store, range(1, 40_000, 2))
    grown = store.regions("t")
    assert len(grown) > len(first)
    assert {region.start for region in first} <= {region.start for region in grown}
    assert len(store.split_points("t", KeyRange(), 4)) == 3
    store.drop_table("t")
    store.create_table(TableInfo("t", FAMILIES))
    assert store.regions("t") == [KeyRange()]
    store.close()


def write_keys(store: EmbeddedStore, numbers: range) -> None:
    batch = written_batch(*(column_write(b"%06d" % number, (A, b"v")) for number in numbers))
    store.write_batch("t", 50, batch)


def test_samples_cut_regions_evenly() -> None:
    samples = [b"%04d" % i for i in range(1000)]
    splits = tables.grown_splits([], samples, 250 * tables.SAMPLE_EVERY)
    assert splits == [b"0250", b"0500", b"0750"]
    assert tables.grown_splits(splits, samples, 250 * tables.SAMPLE_EVERY) == splits
    assert tables.grown_splits([b"0100"], samples, 300 * tables.SAMPLE_EVERY) == [b"0100", b"0400", b"0700"]
    assert tables.cuts(samples, 4) == splits
    assert tables.cuts([], 4) == []


def test_sweep_of_a_drop_that_was_cut_short_is_finished_by_the_next(store: EmbeddedStore) -> None:
    write_keys(store, range(5000))
    environment = store._environment
    environment.write(lambda transaction: store._tables.drop(transaction, "t"))
    assert environment.read(lambda transaction: transaction.stat(environment.databases[CELLS]))["entries"] == 5000
    store.drop_table("another")
    assert environment.read(lambda transaction: transaction.stat(environment.databases[CELLS]))["entries"] == 0
