"""What stands behind Linux's own calls does the same: tried here, beside them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyomid import system

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(params=["linux", "portable"])
def side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "IS_LINUX", request.param == "linux")


@pytest.mark.usefixtures("side")
def test_a_file_is_reserved_and_keeps_what_it_holds(tmp_path: Path) -> None:
    path, size = tmp_path / "file", 4 << 20
    with path.open("wb") as file:
        file.seek(1 << 20)
        file.write(b"x" * 5000)
        file.seek(3 << 20)
        file.write(b"y")
    before = path.read_bytes()
    with path.open("r+b") as file:
        system.reserve(file.fileno(), size)
        system.reserve(file.fileno(), size)
    assert path.read_bytes() == before + bytes(size - len(before))
    assert path.stat().st_blocks * 512 >= size


@pytest.mark.usefixtures("side")
def test_a_process_is_seen_to_be_stopped_or_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert system.process_state(process.pid) in ("R", "S", "D")
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert system.process_state(process.pid) == "T"
    process.kill()
    process.communicate()
    assert system.process_state(process.pid) == ""


@pytest.mark.long
def test_a_folder_is_served_without_what_only_linux_has() -> None:
    """By a client and its TSO of other processes, from the first write to the last upkeep."""
    program = REPOSITORY / "tests" / "support" / "installed.py"
    done = subprocess.run(
        [sys.executable, str(program), "extras"],
        env={**os.environ, "PYOMID_PORTABLE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_send_to_a_closed_peer_is_an_error_and_no_signal() -> None:
    """In a child, because SIGPIPE at its default action would end the tests."""
    child = """
import signal, socket, ssl
from pyomid import system
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
for send in (lambda s: s.send(b"x"), lambda s: s.sendall(b"x"), lambda s: s.sendmsg([b"x"])):
    ours, theirs = socket.socketpair()
    theirs.close()
    try: send(system.QuietSocket.of(ours))
    except BrokenPipeError: print("error", end=" ")
ours, theirs = socket.socketpair()
theirs.close()
try:
    with system.without_sigpipe(): ours.send(b"x")
except BrokenPipeError: print("error")
assert signal.SIGPIPE not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
"""
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=False, timeout=30)
    assert done.stdout.split() == ["error"] * 4, done.stderr
