"""A folder as a long life leaves it, and the time from starting its TSO to the first begin.

python benchmarks/tso/restart_store.py FOLDER ENTRIES         makes it
python benchmarks/tso/restart_store.py FOLDER first-begin     starts a TSO on it, begins once, ends it
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from pyomid.storage.embedded import EmbeddedCatalog, EmbeddedCommitTable, EmbeddedLeaderState
from pyomid.types import LeaderStateChanges, PendingCommit
from pyomid.wire.codec import Handshake, decode_answer, encode_handshake, encode_request
from pyomid.wire.frames import FrameCutter
from pyomid.wire.messages import Begin

LEASES = 1_000
BRANCHES = 10_000
PIECE = 100_000
SLOTS = 100_000_000


def make(folder: Path, entries: int) -> None:
    """Starts and commits take turns, as they do; leases and the pending commit are the newest."""
    table, row = EmbeddedCommitTable(folder, writable=True), EmbeddedLeaderState(folder, writable=True)
    EmbeddedCatalog(folder).close()
    for first in range(0, entries, PIECE):
        starts = 100 * (1 + np.arange(first, min(first + PIECE, entries), dtype=np.int64))
        table.put_block(np.stack([starts, starts + 50], axis=1))
    newest = 100 * (entries + 1)
    assert row.take_over(expected=row.read().epoch, epoch=50, ceiling=newest + 50 * (LEASES + BRANCHES + 10))
    leases = tuple(newest + 50 * index for index in range(1, LEASES + 1))
    row.update(50, LeaderStateChanges(leases_added=leases))
    row.close()
    table.close()


def leave_pending(folder: Path) -> None:
    """A large commit that its TSO did not finish, as new as its timestamps go: the next one seals 10 001 starts."""
    row = EmbeddedLeaderState(folder, writable=True)
    state = row.read()
    start = state.ceiling - 50 * (BRANCHES + 10)
    branches = tuple(start + 50 * index for index in range(1, BRANCHES + 1))
    row.update(state.epoch, LeaderStateChanges(leases_added=(start,), pending_added=(PendingCommit(start, branches),)))
    row.close()


def first_begin(folder: Path) -> str:
    leave_pending(folder)
    program = Path(sys.executable).with_name("pyomid")
    command = [
        program, "tso", "--listen", "127.0.0.1:0", "--store", f"omid://{folder}?conflictMapEntries={SLOTS}",
    ]  # fmt: skip
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        host, port = process.stdout.readline().split()[-1].rsplit(":", 1)
        serving = time.monotonic()
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(encode_handshake(Handshake(1)) + encode_request(Begin(), request_id=1))
            cutter, answers = FrameCutter(), []
            while len(answers) < 2:
                answers += [decode_answer(payload) for payload in cutter.feed(sock.recv(65536))]
        ended = time.monotonic()
        return (
            f"first begin {ended - began:.2f} s after the process was started (serving after {serving - began:.2f} s)"
        )
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    if sys.argv[2] == "first-begin":
        print(first_begin(Path(sys.argv[1])))
    else:
        make(Path(sys.argv[1]), int(sys.argv[2]))
