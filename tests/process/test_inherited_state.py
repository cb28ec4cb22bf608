"""What a process inherits from its program: closed standard descriptors, and SIGPIPE at its default action."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

WITHOUT_STANDARD = """
import asyncio, os, sys
url, how, report = sys.argv[1:]
report = open(report, "w", buffering=1)
for fd in (0, 1, 2):
    os.close(fd)
import pyomid, pyomid.aio

def put(db, value):
    with db.begin() as tx:
        tx.table("t").put(b"k", {b"f:v": value})

async def by_loop():
    async with await pyomid.aio.connect(url) as db:
        async with db.begin() as tx:
            await (await tx.table("t")).put(b"k", {b"f:v": b"2"})
        print(*opened(), file=report)

def opened():
    return [f"{n}:{os.readlink(f'/proc/self/fd/{n}')}" for n in (0, 1, 2) if os.path.exists(f"/proc/self/fd/{n}")]

with pyomid.connect(url) as db:
    db.create_table("t", ["f"])
    put(db, b"1")
    print(*opened(), file=report)
    if how == "closed again":
        for fd in (0, 1, 2):
            os.close(fd)
        put(db, b"3")
    if how == "asyncio":
        asyncio.run(by_loop())
    print(*opened(), file=report)
"""


@pytest.mark.parametrize("how", ["blocking", "asyncio", "closed again"])
def test_no_descriptor_of_ours_takes_a_standard_number(tmp_path: Path, how: str) -> None:
    """Otherwise what the program prints is written over the database's pages."""
    report = tmp_path / "report"
    url = f"omid://{tmp_path}/db?tsoIdleExitSeconds=0.5"
    subprocess.run([sys.executable, "-c", WITHOUT_STANDARD, url, how, str(report)], check=True, timeout=60)
    seen = report.read_text().split()
    assert seen, "the program reported nothing"
    assert {each.partition(":")[2] for each in seen} <= {"/dev/null"}


WITH_SIGPIPE = """
import asyncio, json, os, signal, sys, time
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
import pyomid, pyomid.aio
url, folder, how = sys.argv[1:]

def kill():
    os.kill(json.load(open(f"{folder}/tso.lock"))["pid"], signal.SIGKILL)
    time.sleep(0.3)

async def by_loop():
    async with await pyomid.aio.connect(url) as db:
        for _ in range(2):
            async with db.begin() as tx:
                await (await tx.table("t")).put(b"k", {b"f:v": b"2"})
            kill()
        async with db.begin() as tx:
            await (await tx.table("t")).put(b"k", {b"f:v": b"3"})

with pyomid.connect(url) as db:
    db.create_table("t", ["f"])
    if how == "blocking":
        for _ in range(3):
            with db.begin() as tx:
                tx.table("t").put(b"k", {b"f:v": b"1"})
            kill()
    elif how == "asyncio":
        asyncio.run(by_loop())
    else:
        __import__("uvloop").run(by_loop())
"""


@pytest.mark.parametrize("how", ["blocking", "asyncio", "uvloop"])
def test_a_peer_that_died_never_ends_the_client_by_sigpipe(tmp_path: Path, how: str) -> None:
    if how == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is not installed")
    url = f"omid://{tmp_path}/db?tsoIdleExitSeconds=0.5"
    arguments = [url, str(tmp_path / "db"), how]
    done = subprocess.run([sys.executable, "-c", WITH_SIGPIPE, *arguments], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
