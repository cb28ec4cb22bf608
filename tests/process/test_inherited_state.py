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
    url = f"omid://{tmp_path}/db"
    subprocess.run([sys.executable, "-c", WITHOUT_STANDARD, url, how, str(report)], check=True, timeout=60)
    seen = report.read_text().split()
    assert seen, "the program reported nothing"
    assert {each.partition(":")[2] for each in seen} <= {"/dev/null"}
