"""Compiled kernels keep inside their arrays, whatever bytes they read: in processes of their own, between guard pages.

A kernel that reads one byte too far ends its process, and every transaction in it, for one damaged record or reply.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from pyomid.errors import Corruption
from pyomid.folder import EmbeddedStore
from pyomid.types import Column, KeyRange, RowWrite, TableInfo

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
EXISTING = (
    "core/test_visibility.py", "core/test_cleaning.py", "core/test_hashing.py", "hbase/test_cell_blocks.py",
    "hbase/test_commit_calls.py", "hbase/test_changes.py", "hbase/test_recorded_bytes.py", "spark/test_kernels.py",
    "spark/test_rowkey.py", "spark/test_encoding.py", "storage/test_embedded_pages.py",
    "storage/test_embedded_bytes.py", "tso/test_kernel.py", "storage/test_embedded_points.py", "client/test_puts.py",
    "client/test_shown_rows.py", "wire/test_plain_frames.py",
)  # fmt: skip
"""Tests that give kernels what they should be given."""


def run_guarded(*arguments: str | Path, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.fspath(HERE), **variables}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode} behind {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.fast
def test_hostile_bytes_lead_no_kernel_out_of_its_arrays() -> None:
    run_guarded(HERE / "fuzzed_kernels.py", "1", "150")


@pytest.mark.soak
def test_many_hostile_bytes_lead_no_kernel_out_of_its_arrays() -> None:
    seed = random.randrange(1 << 40)
    print("seed", seed)
    run_guarded(HERE / "fuzzed_kernels.py", str(seed), "20000")


@pytest.mark.soak
def test_no_kernel_leaves_the_arrays_that_it_makes(tmp_path: Path) -> None:
    """AddressSanitizer sees what guard pages around the arguments do not."""
    seed, checked = random.randrange(1 << 40), sanitized(tmp_path / "sanitized")
    print("seed", seed)
    run_guarded(HERE / "fuzzed_kernels.py", str(seed), "2000", **checked)
    tests = [HERE.parent / name for name in EXISTING]
    run_guarded(
        "-m",
        "pytest",
        "-p",
        "guarded",
        "-p",
        "no:cacheprovider",
        "-q",
        "-x",
        "-m",
        "not spark and not hbase and not soak",
        *tests,
        **checked,
    )


def sanitized(folder: Path) -> dict[str, str]:
    """Variables of a process whose compiled modules end it where they leave what was allocated."""
    for name in ("setup.py", "pyproject.toml", "README.md"):
        folder.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    flags = "-fsanitize=address -fno-omit-frame-pointer"
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=folder, env={**os.environ, "CFLAGS": flags, "LDFLAGS": flags}, check=True)
    library = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()
    return {
        "PYTHONPATH": os.pathsep.join((os.fspath(folder / "src"), os.fspath(HERE))),
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONMALLOC": "malloc",
    }


@pytest.mark.fast
@pytest.mark.parametrize("key", [b"", b"\x00" * 9, b"row" + bytes(8), b"row\x00" + b"\xff" * 8])
def test_a_record_whose_key_is_none_is_corruption(key: bytes, tmp_path: Path) -> None:
    """Its checksum is right: another program wrote it, or a bug of ours. The store stays open for all else."""
    store, column = EmbeddedStore(tmp_path / "db"), Column(b"f", b"v")
    store.create_table(TableInfo("t", (b"f",)))
    store.write_cells("t", 50, [RowWrite(b"z", ((column, b"1"),))])

    def damage(transaction: object) -> None:
        whole = store._tables.loaded(transaction, "t").prefix + key
        behind = bytes(8) + b"\x01\x01\x02x"
        transaction.put(whole, struct.pack("<I", crc32(behind, crc32(whole))) + behind, db=store._cells)  # type: ignore[attr-defined]

    store._environment.write(damage)
    with pytest.raises(Corruption, match="its key is not a row and a version"):
        list(store.scan("t", KeyRange()))
    assert [cell.value for cell in store.read_rows("t", [b"z"])[0]] == [b"1"]
    store.close()
