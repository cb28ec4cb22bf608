"""A client, its TSO and their processes, shortly: what runs on every Python that is declared (`make test-pythons`)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pyomid
import pyomid.aio
from pyomid.server.leadership import SOCKET_FILE, holder
from pyomid.server.logs import LOG_FILE

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

IDLE_S = 0.5
WAIT_S = 30.0


def url_of(tmp_path: Path, idle_s: float = IDLE_S) -> str:
    return f"omid://{tmp_path}/db?tsoIdleExitSeconds={idle_s}"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pid: int) -> None:
    give_up_s = time.monotonic() + WAIT_S
    while is_alive(pid):
        assert time.monotonic() < give_up_s, f"process {pid} should have ended"
        time.sleep(0.02)


def errors_logged(folder: Path) -> list[str]:
    lines = (folder / LOG_FILE).read_text().splitlines()
    return [line for line in lines if not line.startswith("{") or json.loads(line)["level"] == "error"]


def test_two_processes_share_a_folder_and_its_tso(tmp_path: Path) -> None:
    with pyomid.connect(url_of(tmp_path)) as db:
        db.create_table("t", families=["f"])
        with db.begin() as tx:
            tx.table("t").put(b"mine", {b"f:x": b"1"})
        program = (
            "import sys, pyomid\n"
            "with pyomid.connect(sys.argv[1]) as db, db.begin() as tx:\n"
            "    print(dict(tx.table('t').scan())); tx.table('t').put(b'theirs', {b'f:x': b'2'})"
        )
        said = subprocess.run([sys.executable, "-c", program, url_of(tmp_path)], capture_output=True, text=True)
        assert said.stdout == "{b'mine': {b'f:x': b'1'}}\n", said.stderr
        with db.begin() as tx:
            assert [key for key, _ in tx.table("t").scan()] == [b"mine", b"theirs"]
    assert errors_logged(tmp_path / "db") == []


def test_a_killed_tso_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    with pyomid.connect(url_of(tmp_path)) as db:
        db.create_table("t", families=["f"])
        for number in range(3):
            with db.begin() as tx:
                tx.table("t").put(b"%d" % number, {b"f:x": b"1"})
            pid = holder(tmp_path / "db")["pid"]
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)
        with db.begin() as tx:
            assert [key for key, _ in tx.table("t").scan()] == [b"0", b"1", b"2"]


def test_an_idle_tso_ends_in_order(tmp_path: Path) -> None:
    with pyomid.connect(url_of(tmp_path)) as db:
        db.create_table("t", families=["f"])
    pid = holder(tmp_path / "db")["pid"]
    wait_for_end(pid)
    assert not (tmp_path / "db" / SOCKET_FILE).exists()
    assert errors_logged(tmp_path / "db") == []
    with pyomid.connect(url_of(tmp_path)) as db:
        assert [table.name for table in db.tables()] == ["t"]


def test_asyncio_clients_use_the_same_tso(tmp_path: Path) -> None:
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


def test_a_tso_by_hand_serves_tcp_and_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyomid", "tso", "--listen", "127.0.0.1:0", "--store", f"omid://{tmp_path}/db"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serving on 127.0.0.1:")
        with pyomid.connect(url_of(tmp_path)) as db:
            db.create_table("t", families=["f"])
        assert holder(tmp_path / "db")["pid"] == process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        process.communicate()
    assert not (tmp_path / "db" / SOCKET_FILE).exists()
