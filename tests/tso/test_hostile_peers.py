"""Peers that storm, drip, vanish, hoard, talk nonsense: each is dealt with by rule, and a checked workload beside them
is not disturbed (T11; docs/tso.md, bad input)."""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checked_workload import PATIENCE_S, CheckedWorkload
from service_process import RawPeer, Service, cell, served
from wire_bytes import block, field_of, varint

from pyomid.omid.wire.codec import Handshake, encode_handshake, encode_request
from pyomid.omid.wire.frames import frame
from pyomid.omid.wire.messages import (
    AdvanceHorizon,
    AskStatus,
    Begin,
    EndLease,
    Fence,
    GrantLease,
    Refused,
    RenewLease,
    Seal,
)
from pyomid.types import AbortReason, BeginReply, CommitReply, CommitRequest
from waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

TCP_REPAIR = 19
"""linux/tcp.h: a socket closed in this mode says nothing to its peer, as if its machine were gone."""


@pytest.fixture(scope="module", autouse=True)
def many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@pytest.fixture(scope="module", params=["compiled", "plain"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder, is_compiled = tmp_path_factory.mktemp("hostile"), request.param == "compiled"
    limits = {"handshake_s_max": 5.0, "frame_s_max": 5.0}
    with served(folder, "--metrics", "127.0.0.1:0", limits=limits, compiled=is_compiled) as running:
        yield running


@pytest.fixture
def load(service: Service) -> Iterator[CheckedWorkload]:
    with CheckedWorkload(service.connect) as running:
        yield running


def until_only_the_workload_is_connected(service: Service, peers: int = 2) -> None:
    until(lambda: service.metrics()["pyomid_tso_connections"] == peers, "connections of strangers stay")


def close_with_reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


# ── who comes and goes ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_thousand_clients_connect_at_once_and_disconnect_halfway(service: Service, load: CheckedWorkload) -> None:
    rng = random.Random(5)
    for _ in range(2):
        peers = [service.connect() for _ in range(1000)]
        load.wait_for_more(20)
        more = (
            encode_request(Begin(), request_id=1) * 5,
            encode_request(Begin(), request_id=1)[:3],
            encode_request(CommitRequest(50, (1, 2, 3)), request_id=7),
            b"",
        )
        for index, sock in enumerate(peers):
            with contextlib.suppress(OSError):  # cut off already, where a slow machine made it late with its handshake
                sock.sendall(encode_handshake(Handshake(1)) + more[index % 4])
        rng.shuffle(peers)
        for index, sock in enumerate(peers):
            if index % 2:
                close_with_reset(sock)
            else:
                sock.close()
    until_only_the_workload_is_connected(service)


def test_more_connections_than_allowed_are_closed_and_there_is_room_again_when_some_leave(tmp_path: Path) -> None:
    with served(tmp_path, "--connections", "12", "--metrics", "127.0.0.1:0") as running:
        with CheckedWorkload(running.connect) as load:
            peers = [running.greeted() for _ in range(10)]
            refused = [running.raw() for _ in range(10)]
            for peer in refused:
                answer = peer.greet().body
                assert isinstance(answer, Refused)
                assert "has 12 connections, and its maximum is 12: close some" in answer.message
            assert all(peer.is_closed_by_peer() for peer in refused)
            java = running.raw()
            java.send(encode_handshake(Handshake(0)))
            assert java.is_closed_by_peer()
            assert running.has_logged("has 12 connections")
            for peer in (*peers, *refused, java):
                peer.close()
            until_only_the_workload_is_connected(running)
            again = running.greeted()
            again.close()
            load.wait_for_more(10)


def test_a_process_that_may_open_few_files_serves_as_many_peers_as_it_can(tmp_path: Path) -> None:
    few = ("bash", "-c", 'ulimit -n 300; exec "$@"', "bash")
    with served(tmp_path, "--metrics", "127.0.0.1:0", before=few) as running:
        assert running.has_logged("limited to 172 connections: this process may open only 300 files")
        with CheckedWorkload(running.connect) as load:
            peers = [running.connect() for _ in range(600)]
            load.wait_for_more(50)
            for sock in peers:
                sock.close()
            until_only_the_workload_is_connected(running)


def test_half_open_connections_are_detected(tmp_path: Path) -> None:
    with served(tmp_path, "--metrics", "127.0.0.1:0", limits={"keepalive_s": 2.0}) as running:
        with CheckedWorkload(running.connect):
            for _ in range(20):
                peer = running.greeted()
                try:
                    peer.sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
                except PermissionError:
                    peer.close()
                    pytest.skip("a connection cannot be dropped silently without CAP_NET_ADMIN")
                peer.close()
            until_only_the_workload_is_connected(running)


def test_idle_peers_are_cut_off_if_configured(tmp_path: Path) -> None:
    with served(tmp_path, "--metrics", "127.0.0.1:0", limits={"idle_s_max": 6.0}) as running:
        with CheckedWorkload(running.connect):
            peers = [running.greeted() for _ in range(20)]
            assert all(peer.is_closed_by_peer() for peer in peers)
            assert running.has_logged("was silent for")
            for peer in peers:
                peer.close()


# ── who is slow ──────────────────────────────────────────────────────────────────────────────────────────────────────


def drip(sock: socket.socket, data: bytes, gone: list[int]) -> None:
    """A byte at a time, until the TSO has had enough; `gone` is told."""
    sock.settimeout(0.0)
    deadline_s = time.monotonic() + PATIENCE_S
    with contextlib.closing(sock):
        for byte in data:
            try:
                sock.send(bytes((byte,)))
            except BlockingIOError:
                pass
            except OSError:
                gone.append(1)
                return
            time.sleep(0.05)
            if time.monotonic() > deadline_s:
                return


@pytest.mark.parametrize(
    "greets",
    [pytest.param(True, id="half a frame"), pytest.param(False, id="half a handshake", marks=pytest.mark.long)],
)
def test_a_slow_loris_gains_no_time_by_single_bytes(service: Service, load: CheckedWorkload, greets: bool) -> None:
    gone: list[int] = []
    threads = []
    for number in range(12):
        peer = service.raw()
        if greets:
            peer.greet()
        long = frame(bytes(4000)) if number % 2 else frame(bytes(300_000 if greets else 4000))
        threads.append(threading.Thread(target=drip, args=(peer.sock, long, gone)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gone) == len(threads), "a peer that drips was never cut off"
    assert service.has_logged("left half a frame unfinished" if greets else "sent no handshake")
    until_only_the_workload_is_connected(service)


@pytest.mark.long
def test_a_peer_that_was_silent_for_long_may_send_a_frame_in_two_halves(service: Service) -> None:
    """The time of half a frame counts from its own first byte, not from the last request."""
    peer = service.greeted()
    time.sleep(5.5)  # longer than `frame_s_max`
    for request in (Begin(), CommitRequest(50, tuple(range(5000)))):
        data = encode_request(request, request_id=3)
        peer.send(data[:5])
        time.sleep(0.6)  # more than one of the TSO's looks at who owes what
        peer.send(data[5:])
        assert peer.answer().request_id == 3
    peer.close()


def test_slow_readers_are_cut_off_without_delaying_others(tmp_path: Path) -> None:
    with served(tmp_path, "--metrics", "127.0.0.1:0", limits={"unread_bytes_max": 65_536}) as running:
        with CheckedWorkload(running.connect) as load:
            for _ in range(3):
                slow = running.greeted()
                slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                begins = encode_request(Begin(), request_id=1) * 1000
                with contextlib.suppress(OSError):
                    while True:
                        slow.send(begins)
                load.wait_for_more(10)
                slow.close()
            assert running.metrics()["pyomid_tso_slow_readers_total"] == 3
            until_only_the_workload_is_connected(running)


def test_the_peer_with_most_unfinished_bytes_is_cut_off_first(tmp_path: Path) -> None:
    with served(tmp_path, "--metrics", "127.0.0.1:0", held_bytes_max=2_000_000) as running:
        with CheckedWorkload(running.connect):
            small = running.greeted()
            small.send(frame(bytes(100_000))[:50_000])
            hogs = [running.raw() for _ in range(4)]
            for peer in hogs:
                peer.greet()
                with contextlib.suppress(OSError):
                    peer.send(frame(bytes(1_000_000))[:-1])
            until(lambda: running.metrics()["pyomid_tso_memory_hogs_total"] >= 2, "nobody was cut off")
            assert running.has_logged("cut off a peer that holds")
            for peer in (small, *hogs):
                peer.close()
            until_only_the_workload_is_connected(running)


def test_a_first_frame_over_the_handshake_limit_is_refused(service: Service, load: CheckedWorkload) -> None:
    peer = service.raw()
    peer.send((1 << 20).to_bytes(4, "big"))
    assert peer.is_closed_by_peer()
    assert service.has_logged("a frame of 1048576 bytes is over the limit of 16384")
    peer.close()


# ── who talks nonsense ───────────────────────────────────────────────────────────────────────────────────────────────

COMMITS: dict[str, tuple[Callable[[int], int], str]] = {
    "a start above the last one issued": (lambda newest: newest + 50 * 10**6, "was never handed out"),
    "a start that is no multiple of 50": (lambda newest: newest - 1, "was never handed out"),
    "a negative start": (lambda newest: -50, "was never handed out"),
    "the most negative start": (lambda newest: -(1 << 63), "was never handed out"),
    "a start at or below the low watermark": (lambda newest: 50, "at or below the low watermark"),
}


@pytest.mark.parametrize("name", COMMITS)
@pytest.mark.parametrize("kind", ["pyomid", "java"])
def test_an_impossible_commit_is_refused_and_logged(
    service: Service, load: CheckedWorkload, name: str, kind: str
) -> None:
    start_of, text = COMMITS[name]
    extended = kind == "pyomid"
    peer = service.raw()
    peer.greet(Handshake(1 if extended else 0))
    peer.send(encode_request(Begin(), request_id=1 if extended else 0, extended=extended))
    begun = peer.told(BeginReply)
    start_ts = start_of(begun.start_ts)
    commit = CommitRequest(start_ts, (1, 2))
    peer.send(encode_request(commit, request_id=2 if extended else 0, extended=extended))
    answer = peer.answer().body
    if extended and "never" in text:
        assert isinstance(answer, Refused)
        assert text in answer.message
        assert str(start_ts) in answer.message
    else:
        assert isinstance(answer, CommitReply)
        assert not answer.committed
        assert answer.start_ts == start_ts
    until(lambda: service.has_logged(text), f"{text!r} was not logged")
    peer.send(encode_request(Begin(), request_id=3 if extended else 0, extended=extended))
    peer.told(BeginReply)  # the connection goes on
    peer.close()


@pytest.mark.parametrize("ids", [100, 12_000], ids=["short", "long"])
def test_a_request_id_may_be_any_of_64_bits(service: Service, load: CheckedWorkload, ids: int) -> None:
    """A long request is parsed by compiled code, to which these are signed: its answer must not end the process."""
    peer = service.greeted()
    for number, request_id in enumerate(((1 << 63) - 1, 1 << 63, (1 << 64) - 1)):
        commit = CommitRequest(50, tuple(range(-ids, 0)), (7 + number,))
        peer.send(encode_request(commit, request_id=request_id))
        assert peer.answer().request_id == request_id
    peer.close()


def test_the_error_for_an_oversize_frame_names_the_limit_and_the_way_out(
    service: Service, load: CheckedWorkload
) -> None:
    peer = service.greeted()
    peer.send(((10 << 20) + 1).to_bytes(4, "big"))
    refused = peer.told(Refused)
    assert refused.code == "OMID-FRAME-TOO-LONG"
    assert f"over the limit of {10 << 20}" in refused.message
    assert "commit smaller transactions" in refused.message
    assert peer.is_closed_by_peer()
    until(lambda: service.has_logged(refused.message), "not logged")
    peer.close()


def test_a_flood_of_refusals_fills_no_log_and_hides_no_other_line(tmp_path: Path) -> None:
    with served(tmp_path, "--metrics", "127.0.0.1:0") as running, CheckedWorkload(running.connect):
        peer = running.greeted()
        for _ in range(20):
            peer.send(encode_request(CommitRequest(51, (1,)), request_id=9) * 100)
            for _ in range(100):
                peer.told(Refused)
        assert running.metrics()["pyomid_tso_refused_total"] == 2000
        refusals = [line for line in running.log_lines() if "refused a request" in line["message"]]
        assert 0 < len(refusals) <= 200
        peer.send((11 << 20).to_bytes(4, "big"))
        assert peer.is_closed_by_peer()
        until(lambda: running.has_logged("over the limit"), "hidden")
        peer.close()


# ── fuzz ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

ODD_NUMBERS = (0, 1, 49, 50, -1, -50, -(1 << 63), (1 << 63) - 1, (1 << 62) + 50)


def number(rng: random.Random) -> bytes:
    return varint(rng.choice((rng.choice(ODD_NUMBERS), rng.getrandbits(63))), rng.choice((0, 0, 0, 1, 3, 9, 12)))


def commit_field(rng: random.Random) -> bytes:
    match rng.randrange(7):
        case 0:
            return field_of(1, 0, number(rng))
        case 1:
            return field_of(rng.choice((3, 4)), 0, number(rng))  # ids that are not packed
        case 2 | 3:
            return field_of(rng.choice((3, 4)), 2, block(b"".join(number(rng) for _ in range(rng.randrange(30)))))
        case 4:
            return field_of(rng.choice((5, 63, 90, 12345)), 0, number(rng))  # unknown to everybody
        case 5:
            return field_of(rng.choice((6, 62, 777)), 2, block(rng.randbytes(rng.randrange(40))))
        case _:
            return field_of(rng.choice((2, 64, 65)), 0, number(rng))


def strange_message(rng: random.Random) -> bytes:
    """A message nobody's library would write: any order, any encoding, sometimes damaged; often valid all the same."""
    fields = [commit_field(rng) for _ in range(rng.randrange(10))]
    rng.shuffle(fields)
    body = field_of(2, 2, block(b"".join(fields)))
    if rng.random() < 0.3:
        odd, few = rng.choice(ODD_NUMBERS), tuple(rng.choices(ODD_NUMBERS, k=2))
        terms = (0.1, 0.0, -1.0, 1e300, float("nan"), float("inf"))
        request = rng.choice((
            Begin(odd), Fence(rng.getrandbits(60)), Seal((50, 100)), Seal(few), AskStatus(),
            GrantLease(odd, rng.choice(terms)), RenewLease(odd), EndLease(odd),
            AdvanceHorizon(rng.choice((-1, -50, -(1 << 63), (1 << 63) - 1))),
            CommitRequest(odd, few, branches=few, is_retry=rng.random() < 0.3),
        ))  # fmt: skip
        body = encode_request(request, request_id=rng.getrandbits(64))[4:]
    if rng.random() < 0.2:
        body += field_of(64, 0, number(rng))
    data = bytearray(frame(body))
    match rng.randrange(8):
        case 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data)) :]
        case 2:
            data[:4] = rng.randrange(12 << 20).to_bytes(4, "big")
        case 3:
            data[4:4] = rng.randbytes(rng.randrange(12))
    return bytes(data)


def test_t11_peers_that_send_garbage_do_not_disturb_the_checked_workload(
    service: Service, load: CheckedWorkload
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(250):
        with contextlib.closing(service.connect()) as stranger, contextlib.suppress(OSError):
            if rng.random() < 0.9:
                stranger.sendall(encode_handshake(Handshake(rng.choice((0, 1)))))
            data = b"".join(strange_message(rng) for _ in range(rng.randrange(1, 12)))
            at = 0
            while at < len(data):  # cut anywhere
                step = rng.choice((1, 7, 100, 100_000))
                stranger.sendall(data[at : at + step])
                at += step
    until_only_the_workload_is_connected(service)


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sigterm_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Everything that was decided is answered, and everybody is told by a closed connection."""
    acknowledged: list[tuple[int, int]] = []
    lock = threading.Lock()

    def work(peer: RawPeer) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                for tag in range(1, 33):
                    peer.send(encode_request(Begin(), request_id=tag))
                starts = [peer.answer().body.start_ts for _ in range(32)]  # type: ignore[union-attr]
                peer.send(b"".join(encode_request(CommitRequest(s, (cell(s),)), request_id=s) for s in starts))
                for _ in starts:
                    reply = peer.told(CommitReply)
                    assert reply.committed
                    with lock:
                        acknowledged.append((reply.start_ts, reply.commit_ts))

    with served(tmp_path) as running:
        peers = [running.greeted() for _ in range(4)]
        threads = [threading.Thread(target=work, args=(peer,)) for peer in peers]
        for thread in threads:
            thread.start()
        until(lambda: len(acknowledged) > 300, "no commits")
        running.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert running.process.wait(timeout=60) == 0
        assert running.has_logged("stopped")
        for peer in peers:
            peer.close()
    assert len(acknowledged) == len({commit_ts for _, commit_ts in acknowledged})


# ── what a person sees ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["compiled", "plain"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """One whose conflict map nobody has filled."""
    with served(tmp_path, "--metrics", "127.0.0.1:0", compiled=request.param == "compiled") as running:
        yield running


def test_every_metric_is_reported_and_counts(fresh: Service) -> None:
    peer = fresh.greeted()
    before = fresh.metrics()
    peer.send(b"".join(encode_request(Begin(), request_id=tag) for tag in (1, 2)))
    first, second = (peer.answer().body.start_ts for _ in range(2))  # type: ignore[union-attr]
    for start_ts, reason in ((first, None), (second, AbortReason.CONFLICT), (50, AbortReason.LOW_WATERMARK)):
        peer.send(encode_request(CommitRequest(start_ts, (cell(77),)), request_id=9))
        reply = peer.told(CommitReply)
        assert reply.reason == reason
    after = fresh.metrics()

    def grown(name: str) -> float:
        return after[f"pyomid_tso_{name}"] - before[f"pyomid_tso_{name}"]

    assert (grown("begins_total"), grown("commits_total")) == (2, 1)
    assert grown('aborts_total{reason="conflict"}') == grown('aborts_total{reason="low_watermark"}') == 1
    assert grown("conflict_map_entries") == 1
    assert grown("flush_seconds_count") >= 1
    assert after["pyomid_tso_connections"] == 1
    assert after["pyomid_tso_low_watermark_lag"] > 0
    assert after["pyomid_tso_conflict_map_entries_max"] >= 65536
    for reason in AbortReason:
        assert f'pyomid_tso_aborts_total{{reason="{reason.value}"}}' in after
    assert any(name.startswith('pyomid_tso_watermark_lag{by="') for name in after)
    for name in ("begin_waits_total", "slow_readers_total", "refused_total", "leases", "leads", "epoch"):
        assert f"pyomid_tso_{name}" in after
    assert fresh.page("/health") == fresh.page("/ready") == "serving\n"
    peer.close()
