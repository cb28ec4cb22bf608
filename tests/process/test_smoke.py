"""Clients of a folder and their processes, shortly: what runs on every declared Python (`make test-pythons`)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyomid
import pyomid.aio

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

ADDS = """
import sys, pyomid
with pyomid.connect(sys.argv[1]) as db, db.begin() as tx:
    print(dict(tx.table("t").scan()))
    tx.table("t").put(b"theirs", {b"f:x": b"2"})
"""


def url_of(tmp_path: Path) -> str:
    return f"omid://{tmp_path}/db"


def test_two_processes_share_a_folder_and_leave_none_behind(tmp_path: Path) -> None:
    with pyomid.connect(url_of(tmp_path)) as db:
        db.create_table("t", families=["f"])
        with db.begin() as tx:
            tx.table("t").put(b"mine", {b"f:x": b"1"})
        said = subprocess.run([sys.executable, "-c", ADDS, url_of(tmp_path)], capture_output=True, text=True)
        assert said.stdout == "{b'mine': {b'f:x': b'1'}}\n", said.stderr
        with db.begin() as tx:
            assert [key for key, _ in tx.table("t").scan()] == [b"mine", b"theirs"]
        assert db.status().tso.processes == (os.getpid(),)


@pytest.mark.parametrize("point", ["storage.commit.taken:3", "storage.commit.durable:3"])
def test_a_process_that_is_killed_within_a_commit_stops_nobody(tmp_path: Path, point: str) -> None:
    with pyomid.connect(url_of(tmp_path)) as db:
        db.create_table("t", families=["f"])
        killed = subprocess.run(
            [sys.executable, "-c", ADDS * 3, url_of(tmp_path)], env=os.environ | {"PYOMID_CRASH_AT": point}
        )
        assert killed.returncode == -9
        with db.begin() as tx:
            tx.table("t").put(b"mine", {b"f:x": b"1"})
        with db.begin() as tx:
            assert tx.table("t").get(b"mine")
        assert db.verify().ok


def test_asyncio_clients_share_it_too(tmp_path: Path) -> None:
    async def write(db: pyomid.aio.AsyncDatabase, number: int) -> None:
        async with db.begin() as tx:
            await (await tx.table("t")).put(b"%d" % number, {b"f:x": b"1"})

    async def run() -> list[bytes]:
        async with await pyomid.aio.connect(url_of(tmp_path)) as db:
            await asyncio.gather(*(write(db, number) for number in range(8)))
            async with db.begin() as tx:
                return [key async for key, _ in (await tx.table("t")).scan()]

    with pyomid.connect(url_of(tmp_path)) as db:
        db.create_table("t", families=["f"])
    assert asyncio.run(run()) == [b"%d" % number for number in range(8)]


def test_a_tso_by_hand_serves_no_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyomid", "tso", "--listen", "127.0.0.1:0", "--store", url_of(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 3
    assert "a folder needs no TSO" in said.stderr
