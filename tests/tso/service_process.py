"""A TSO in its own process, and clients that send raw bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from changed_tso import changed_tso
from pyomid.omid.client.blocking import TsoSession
from pyomid.omid.wire.codec import Handshake, ReceivedAnswer, decode_answer, encode_handshake
from pyomid.omid.wire.frames import FrameCutter
from pyomid.tls import tcp_connector

T = TypeVar("T")
COMMAND = [sys.executable, "-m", "pyomid", "tso"]


def cell(number: int) -> int:
    """An id as evenly spread as a hash's."""
    return (number * 0x9E3779B97F4A7C15 & ((1 << 64) - 1)) - (1 << 63)


@dataclass
class Service:
    """Started by hand, its first listener known."""

    process: subprocess.Popen[str]
    address: str
    log: Path

    def session(self, **more: Any) -> TsoSession:
        return TsoSession(tcp_connector(self.address), **{"request_s": 5.0, "retry_s": 5.0, **more})

    def connect(self, *, timeout_s: float = 60.0) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=timeout_s)

    def raw(self) -> RawPeer:
        return RawPeer(self.connect())

    def greeted(self) -> RawPeer:
        peer = self.raw()
        peer.greet()
        return peer

    def metrics(self) -> dict[str, float]:
        """Name, or name{labels}, and value; of a service with `--metrics 127.0.0.1:0`."""
        lines = self.page("/metrics").splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def page(self, path: str) -> str:
        [port] = [line["port"] for line in self.log_lines() if line["message"] == "metrics and health"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
            return str(response.read().decode())

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def has_logged(self, text: str) -> bool:
        return any(text in line["message"] for line in self.log_lines())

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) << 10


class RawPeer:
    """A peer that says what it likes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._cutter = FrameCutter()
        self._answers: list[ReceivedAnswer] = []

    def greet(self, handshake: Handshake | None = None) -> ReceivedAnswer:
        self.sock.sendall(encode_handshake(handshake or Handshake(1)))
        return self.answer()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, kind: type = object) -> ReceivedAnswer:
        while not self._answers:
            chunk = self.sock.recv(1 << 16)
            if not chunk:
                raise EOFError("closed by the TSO")
            self._answers += [decode_answer(payload) for payload in self._cutter.feed(chunk)]
        answer = self._answers.pop(0)
        assert isinstance(answer.body, kind), answer
        return answer

    def told(self, kind: type[T]) -> T:
        body: T = self.answer(kind).body  # type: ignore[assignment]
        return body

    def is_closed_by_peer(self) -> bool:
        """Waits for the end of the stream, whatever comes before it."""
        with contextlib.suppress(ConnectionResetError):
            while self.sock.recv(1 << 16):
                pass
        return True

    def close(self) -> None:
        self.sock.close()


@contextlib.contextmanager
def served(
    tmp_path: Path,
    *options: str,
    store: str = "omid-memory:tso",
    conflict_map_entries: int = 65_536,
    before: Sequence[str] = (),
    **changes: Any,
) -> Iterator[Service]:
    """A service on a free port; killed at the end if it still runs. `before`: words before the command's own;
    `changes`: what no option sets (`changed_tso`)."""
    log = tmp_path / "service.log"
    program = changed_tso(**changes) if changes else [sys.executable, "-m", "pyomid"]
    url = f"{store}{'&' if '?' in store else '?'}conflictMapEntries={conflict_map_entries}"
    command = [*before, *program, "tso", "--listen", "127.0.0.1:0", "--store", url, *options]
    with open(log, "ab") as lines:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=lines, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("serving on "):
            raise AssertionError(f"exit {process.wait()}: {log.read_text()}")
        yield Service(process, line.split()[2], log)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def tls_options(certificates: Path) -> tuple[str, ...]:
    return "--tls-cert", str(certificates / "server.pem"), "--tls-key", str(certificates / "server.key")


def trusting(certificates: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates / "ca.pem"))


def is_alive(pid: int) -> bool:
    """A zombie, which nobody has waited for yet, is dead."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
