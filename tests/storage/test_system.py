"""What stands behind Linux's own calls does the same: tried here, beside them."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

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
def test_a_socket_in_a_long_path_is_reached_and_its_owner_told(tmp_path: Path) -> None:
    folder = tmp_path / ("f" * 120)
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with system.socket_path(fd, folder, "s") as path:
            server.bind(path)
        server.listen()
        with system.socket_path(fd, folder, "s") as path:
            client.connect(path)
        assert system.peer_uid(client, folder / "s") == os.geteuid()
    os.close(fd)


class WithReapedPeer(socket.socket):
    """Says what a kernel says whose process is gone."""

    number = 0

    def getsockopt(self, *arguments: Any) -> Any:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "is_told"),
    [(errno.ESRCH, True), (errno.EINVAL, True), (errno.ENOPROTOOPT, False), (errno.EMFILE, False)],
)
def test_a_peer_that_was_reaped_is_told_as_each_kernel_says_it(
    monkeypatch: pytest.MonkeyPatch, number: int, is_told: bool
) -> None:
    """EINVAL: Linux 6.5 to 6.15. Where the system tells of no peer at all, that says nothing."""
    ours, theirs = socket.socketpair()
    with theirs, WithReapedPeer(fileno=ours.detach()) as sock:
        sock.number = number
        for tells in (True, False):
            monkeypatch.setattr(system, "_reports_peers", lambda tells=tells: tells)
            if is_told and (tells or number == errno.ESRCH):
                with pytest.raises(ProcessLookupError):
                    system.peer_process(sock)
            else:
                assert system.peer_process(sock) is None


def test_an_option_that_the_kernel_does_not_know_tells_of_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        told = system.peer_process(ours)
        assert system._reports_peers() == (told is not None)
        if told is not None:
            os.close(told)
        monkeypatch.setattr(system, "_SO_PEERPIDFD", 0x7FFF)
        assert system.peer_process(ours) is None
        assert not system._reports_peers()


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
