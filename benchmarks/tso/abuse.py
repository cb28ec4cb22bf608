"""One client that commits, beside one that abuses the TSO in every way it can: a row per kind of abuser.

    python -m benchmarks.tso.abuse [--seconds 3] [--rest 60] [--only begins,fences] [--peers 1]

Each row is a process of its own: the victim alone, then beside the abuser, until the abuser has left and every answer
has come; then the memory is looked at again after `--rest` seconds. The victim begins and commits one cell at a time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
from benchmarks._report import machine_lines

from changed_tso import changed_tso
from pyomid.errors import Unavailable
from pyomid.omid.wire.codec import Handshake, ReceivedAnswer, decode_answer, encode_handshake, encode_request
from pyomid.omid.wire.frames import FrameCutter, frame
from pyomid.omid.wire.messages import AdvanceHorizon, AskStatus, Begin, Fence, GrantLease, Request, Seal
from pyomid.types import BeginReply, CommitRequest, WriteSetLevel

LONG: Final = 10 << 20
"""What one frame may hold."""
GOAL_MS: Final = 20.0
PATIENCE_S: Final = 60.0


class Peer:
    """A connection whose handshake is done."""

    def __init__(self, address: str) -> None:
        self.sock = _dialled(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._cutter = FrameCutter(1 << 30)
        self._answers: list[ReceivedAnswer] = []
        self.sock.sendall(encode_handshake(Handshake(1)))
        self.answer()

    def ask(self, request: Request) -> ReceivedAnswer:
        self.sock.sendall(encode_request(request, request_id=1))
        return self.answer()

    def answer(self) -> ReceivedAnswer:
        while not self._answers:
            chunk = self.sock.recv(1 << 16)
            if not chunk:
                raise Unavailable("the TSO closed a connection")
            self._answers += [decode_answer(payload) for payload in self._cutter.feed(chunk)]
        return self._answers.pop(0)

    def begin(self) -> int:
        return self.begins(1)[0]

    def begins(self, count: int) -> list[int]:
        """All asked for at once."""
        self.sock.sendall(encode_request(Begin(), request_id=1) * count)
        bodies = [self.answer().body for _ in range(count)]
        return [body.start_ts for body in bodies if isinstance(body, BeginReply)]

    def exchange(self, requests: list[Request]) -> None:
        """All at once, and all their answers."""
        self.sock.sendall(b"".join(encode_request(request, request_id=1) for request in requests))
        for _ in requests:
            self.answer()


# ── abusers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def begins(peer: Peer) -> Iterator[bytes]:
    return _again(encode_request(Begin(), request_id=1) * 10_000)


def fences(peer: Peer) -> Iterator[bytes]:
    return _again(encode_request(Fence(1), request_id=1) * 10_000)


def cells(peer: Peer) -> Iterator[bytes]:
    return _commits(peer, 3)


def tables(peer: Peer) -> Iterator[bytes]:
    return _commits(peer, 4)


def seals(peer: Peer) -> Iterator[bytes]:
    start_ts = peer.begin()
    return _again(encode_request(Seal((start_ts,) * 90_000), request_id=1))


def long_seals(peer: Peer) -> Iterator[bytes]:
    start_ts = peer.begin()
    return _again(encode_request(Seal((start_ts,) * 1_000_000), request_id=1))


def small_seals(peer: Peer) -> Iterator[bytes]:
    return _again(encode_request(Seal((peer.begin(),)), request_id=1) * 10_000)


def retries(peer: Peer) -> Iterator[bytes]:
    return _again(encode_request(CommitRequest(peer.begin(), (1,), is_retry=True), request_id=1) * 10_000)


def status(peer: Peer) -> Iterator[bytes]:
    return _again(encode_request(AskStatus(), request_id=1) * 10_000)


def seals_apart(peer: Peer) -> Iterator[bytes]:
    """Of a start each: the TSO has to remember every one."""
    while True:
        peer.exchange([Seal((start_ts,)) for start_ts in peer.begins(1000)])
        yield b""


def leases(peer: Peer) -> Iterator[bytes]:
    """As many as are granted, then one more again and again."""
    starts = [start_ts for _ in range(8) for start_ts in peer.begins(2000)]
    yield b"".join(encode_request(GrantLease(start_ts, 0.0), request_id=1) for start_ts in starts)
    yield from _again(encode_request(GrantLease(starts[-1], 0.0), request_id=1) * 10_000)


def table_level(peer: Peer) -> Iterator[bytes]:
    """Commits at table level, each of a start and a table of its own: each is flushed by itself."""
    while True:
        starts = enumerate(peer.begins(800), 1)
        peer.exchange([CommitRequest(start, table_ids=(n,), level=WriteSetLevel.TABLE) for n, start in starts])
        yield b""


def branches(peer: Peer) -> Iterator[bytes]:
    start_ts, branch = peer.begins(2)
    return _again(encode_request(CommitRequest(start_ts, branches=(branch,) * 1_000_000), request_id=1))


def parts(peer: Peer) -> Iterator[bytes]:
    """A commit in frames of 10 MiB each, which is over the limit in the end."""
    ids = (*range(1 << 62, (1 << 62) + 3_000_000),)
    data = encode_request(CommitRequest(50, ids), request_id=1)
    while True:
        peer.sock.sendall(data)
        peer.answer()
        yield b""


def horizons(peer: Peer) -> Iterator[bytes]:
    return _again(encode_request(AdvanceHorizon(0), request_id=1) * 10_000)


ABUSERS: Final[dict[str, Callable[[Peer], Iterator[bytes]]]] = {
    made.__name__: made
    for made in (
        begins, fences, cells, tables, seals, long_seals, small_seals, retries, status,
        seals_apart, leases, table_level, branches, parts, horizons,
    )
}  # fmt: skip


# ── abusers who do not even ask ──────────────────────────────────────────────────────────────────────────────────────


def come_and_go(address: str, metrics: str, until_s: float) -> None:
    """Connections, each with its handshake, as fast as they can be made."""
    while time.monotonic() < until_s:
        Peer(address).sock.close()


def knock_and_run(address: str, metrics: str, until_s: float) -> None:
    """Connections without a word."""
    while time.monotonic() < until_s:
        _dialled(address).close()


def stay_silent(address: str, metrics: str, until_s: float) -> None:
    """Three thousand connections that want nothing."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kept = [Peer(address) for _ in range(3000)]
    while time.monotonic() < until_s:
        time.sleep(0.1)
    del kept


def scrape(address: str, metrics: str, until_s: float) -> None:
    """Fifty askers of the metrics, again and again, who read what they are told some time later."""
    while time.monotonic() < until_s:
        askers = [_dialled(metrics) for _ in range(50)]
        for asker in askers:
            with suppress(OSError):
                asker.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for asker in askers:
            with suppress(OSError), asker:
                asker.recv(1 << 16)


def never_read(address: str, metrics: str, until_s: float) -> None:
    """Requests until one is cut off, and again."""
    data = encode_request(AskStatus(), request_id=1) * 1000 + encode_request(Begin(), request_id=1) * 10_000
    while time.monotonic() < until_s:
        peer = Peer(address)
        peer.sock.settimeout(max(0.01, until_s - time.monotonic()))
        with suppress(OSError), peer.sock:
            while time.monotonic() < until_s:
                peer.sock.sendall(data)


STORMS: Final[dict[str, Callable[[str, str, float], None]]] = {
    made.__name__: made for made in (come_and_go, knock_and_run, stay_silent, scrape, never_read)
}


def _dialled(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def _again(data: bytes) -> Iterator[bytes]:
    while True:
        yield data


def _commits(peer: Peer, field: int) -> Iterator[bytes]:
    """Commits of ids as long as a frame may be, of a start of its own each: nothing of them conflicts."""
    rng = np.random.default_rng(7)
    ids = b"".join(_varint(int(number)) for number in rng.integers(1 << 55, 1 << 56, LONG // 8 - 100))
    while True:
        inner = b"\x08" + _varint(peer.begin()) + bytes([field << 3 | 2]) + _varint(len(ids)) + ids
        body = b"\x12" + _varint(len(inner)) + inner
        assert len(body) <= LONG, len(body)
        peer.sock.sendall(frame(body))
        peer.answer()
        yield b""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def abuse(address: str, metrics: str, kind: str, seconds: float) -> None:
    """In a process of its own: sends as fast as it is read, reads whatever comes, leaves without a word."""
    until_s = time.monotonic() + seconds
    try:
        if kind in STORMS:
            STORMS[kind](address, metrics, until_s)
            return
        peer = Peer(address)
        source = ABUSERS[kind](peer)
        data = memoryview(next(source))
        peer.sock.setblocking(False)
        sink = bytearray(1 << 20)
        while time.monotonic() < until_s:
            if not data:
                peer.sock.setblocking(True)
                data = memoryview(next(source))
                peer.sock.setblocking(False)
                continue
            readable, writable, _ = select.select([peer.sock], [peer.sock], [], 0.1)
            if readable and not peer.sock.recv_into(sink):
                print(f"    (the TSO closed the abuser {kind})")
                return
            if writable:
                data = data[peer.sock.send(data[: 1 << 18]) :]
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.sock.close()
    except (OSError, Unavailable) as error:
        print(f"    (the abuser {kind} ended: {error})")


# ── the victim ───────────────────────────────────────────────────────────────────────────────────────────────────────


def transactions(peer: Peer, more: Callable[[], bool]) -> list[float]:
    """Milliseconds of each request while `more`."""
    took: list[float] = []
    number = 0

    def timed(request: Request) -> int:
        began = time.perf_counter()
        body = peer.ask(request).body
        took.append(1000 * (time.perf_counter() - began))
        return int(getattr(body, "start_ts", 0))

    while more():
        number += 1
        timed(CommitRequest(timed(Begin()), (number * 0x9E3779B97F4A7C15 % (1 << 63),)))
    return took


def told(took: list[float]) -> str:
    took = sorted(took)
    return (
        f"p50 {took[len(took) // 2]:6.2f} p99 {took[len(took) * 99 // 100]:8.2f} max {took[-1]:9.1f} ms ({len(took)})"
    )


def memory_mb(pid: int, name: str = "VmRSS") -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) >> 10


@contextmanager
def tso(folder: Path, *, is_compiled: bool) -> Iterator[tuple[int, str, str]]:
    """Its process, its address, and that of its metrics."""
    program = changed_tso(compiled=is_compiled)
    command = [*program, "tso", "--listen", "127.0.0.1:0", "--store", "omid-memory:tso?conflictMapEntries=8000000"]
    command += ["--metrics", "127.0.0.1:0"]
    with open(folder / "abused.log", "w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("serving on "):
            raise Unavailable(f"the TSO said {line!r}; its log is {folder / 'abused.log'}")
        said = [json.loads(each) for each in (folder / "abused.log").read_text().splitlines()]
        [port] = [each["port"] for each in said if "port" in each]
        yield process.pid, line.split()[-1], f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def row(kind: str, folder: Path, arguments: argparse.Namespace) -> bool:
    """Whether the victim's p99 stayed below the goal."""
    with tso(folder, is_compiled=not arguments.plain) as (pid, address, metrics):
        victim = Peer(address)
        until_s = time.monotonic() + arguments.seconds
        alone = transactions(victim, lambda: time.monotonic() < until_s)
        before_mb = memory_mb(pid)
        workers = [
            multiprocessing.get_context("fork").Process(target=abuse, args=(address, metrics, kind, arguments.seconds))
            for _ in range(arguments.peers)
        ]
        for worker in workers:
            worker.start()
        beside = transactions(victim, lambda: any(worker.is_alive() for worker in workers))
        until_s = time.monotonic() + 1.0
        after = transactions(victim, lambda: time.monotonic() < until_s)
        peak_mb = memory_mb(pid, "VmHWM")
        time.sleep(arguments.rest)
        rested_mb = memory_mb(pid)
    p99 = sorted(beside)[len(beside) * 99 // 100]
    print(f"  {kind:18} alone  {told(alone)}")
    print(f"  {'':18} beside {told(beside)}{'' if p99 < GOAL_MS else f'  OVER {GOAL_MS:.0f} ms'}")
    print(f"  {'':18} after  {told(after)}")
    print(f"  {'':18} RSS before {before_mb}, peak {peak_mb}, {arguments.rest:.0f} s later {rested_mb} MB", flush=True)
    return p99 < GOAL_MS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rest", type=float, default=60.0)
    parser.add_argument("--peers", type=int, default=1, help="abusers at once")
    parser.add_argument("--plain", action="store_true", help="the reference implementation decides")
    parser.add_argument("--only", default=",".join((*ABUSERS, *STORMS)))
    arguments = parser.parse_args()
    print("\n".join(machine_lines()))
    beside = f"{arguments.peers} abuser(s) for {arguments.seconds} s"
    print(f"\none client that commits, beside {beside}")
    with tempfile.TemporaryDirectory(prefix="bench-abuse-") as name:
        good = [row(kind, Path(name), arguments) for kind in arguments.only.split(",")]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    os.environ.pop("PYOMID_TSO_CONFIG", None)
    main()
