"""However a peer divides its stream, it gets each reply once, whole and in order, and no other peer does."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from checked_workload import CheckedWorkload
from service_process import RawPeer, Service, cell, served

from pyomid.omid.wire.codec import Handshake, encode_request
from pyomid.omid.wire.messages import Begin, Fence, FenceReply
from pyomid.types import BeginReply, CommitReply, CommitRequest

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("streams")
    with served(folder, "--metrics", "127.0.0.1:0", limits={"frame_s_max": 20.0}) as running:
        yield running


def greeted(service: Service, *, extended: bool = True) -> RawPeer:
    peer = service.raw()
    peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.greet(Handshake(1 if extended else 0))
    return peer


def begun(peer: RawPeer, count: int) -> list[int]:
    """So many starts, in the order in which they were given."""
    peer.send(b"".join(encode_request(Begin(), request_id=tag) for tag in range(1, count + 1)))
    starts = []
    for tag in range(1, count + 1):
        answer = peer.answer(BeginReply)
        assert answer.request_id == tag
        starts.append(answer.body.start_ts)
    assert all(one < other for one, other in pairwise(starts))
    return starts


@pytest.mark.long
def test_frames_may_be_cut_anywhere_between_two_reads(service: Service) -> None:
    rng = random.Random(3)
    peer = greeted(service)
    for round_ in range(40):
        starts = begun(peer, 8)
        stream = b"".join(
            encode_request(
                CommitRequest(start, tuple(cell(start + k) for k in range(rng.randrange(1, 40)))), request_id=n
            )
            for n, start in enumerate(starts, 1)
        )
        at = 0
        while at < len(stream):
            piece = rng.choice([1, 2, 3, 4, 5, 50, 500])
            peer.send(stream[at : at + piece])
            at += piece
            if rng.random() < 0.3:
                time.sleep(0.001)
        answered = {}
        for _ in starts:
            answer = peer.answer(CommitReply)
            assert answer.body.committed, (round_, answer)
            answered[answer.request_id] = answer.body.start_ts
        assert answered == dict(enumerate(starts, 1))
    peer.close()


def test_a_long_frame_comes_in_pieces(service: Service) -> None:
    peer = greeted(service)
    [start, next_start] = begun(peer, 2)
    stream = encode_request(CommitRequest(start, tuple(cell(start * 1000 + k) for k in range(5000))), request_id=7)
    stream += encode_request(CommitRequest(next_start, (cell(next_start),)), request_id=8)
    for at in range(0, len(stream), 1500):
        peer.send(stream[at : at + 1500])
        time.sleep(0.002)
    assert {peer.answer().request_id, peer.answer().request_id} == {7, 8}
    assert len(begun(peer, 3)) == 3
    peer.close()


@pytest.mark.parametrize("extended", [True, False])
def test_rare_requests_among_ordinary_ones_keep_their_order(service: Service, extended: bool) -> None:
    """Java matches begins by their order, so none may overtake another, whoever answers them."""
    peer = greeted(service, extended=extended)
    for round_ in range(20):
        begins = b"".join(encode_request(Begin(), request_id=tag) for tag in (1, 2, 3))
        peer.send(begins + encode_request(Fence(1234 + round_), request_id=9) + begins)
        starts, fences = [], 0
        for _ in range(7):
            body = peer.answer().body
            if isinstance(body, FenceReply):
                fences += 1
            else:
                assert isinstance(body, BeginReply)
                starts.append(body.start_ts)
        assert fences == 1
        assert starts == sorted(starts)
    peer.close()


def test_a_peer_that_reads_late_gets_every_answer_once_and_in_order(service: Service) -> None:
    count = 300_000
    peer = greeted(service)
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    asked = b"".join(encode_request(Begin(), request_id=tag) for tag in range(1, count + 1))
    sender = threading.Thread(target=peer.sock.sendall, args=(asked,))
    with CheckedWorkload(service.connect) as load:
        sender.start()
        load.wait_for_more(50)
        tags, starts = [], []
        for _ in range(count):
            answer = peer.answer(BeginReply)
            tags.append(answer.request_id)
            starts.append(answer.body.start_ts)
        sender.join()
    assert tags == list(range(1, count + 1))
    assert all(one < other for one, other in pairwise(starts))
    assert len(begun(peer, 10)) == 10
    peer.close()


def test_a_peer_with_more_commits_than_may_wait_gets_all_its_answers(service: Service) -> None:
    count = 100_000
    peer = greeted(service)
    starts = begun(peer, count)
    asked = b"".join(
        encode_request(CommitRequest(start, (cell(start),)), request_id=tag) for tag, start in enumerate(starts, 1)
    )
    sender = threading.Thread(target=peer.sock.sendall, args=(asked,))
    sender.start()
    answered = set()
    for _ in range(count):
        answer = peer.answer(CommitReply)
        assert answer.body.start_ts == starts[answer.request_id - 1]
        answered.add(answer.request_id)
    sender.join()
    assert len(answered) == count
    peer.close()


def test_replies_for_a_peer_that_left_are_dropped(service: Service) -> None:
    """Its descriptor belongs to the next one that comes, and so may its place in the kernel's tables."""
    with CheckedWorkload(service.connect) as load:
        for round_ in range(150):
            leaver = greeted(service)
            starts = begun(leaver, 20)
            commits = [encode_request(CommitRequest(start, (cell(start),)), request_id=77) for start in starts]
            leaver.send(b"".join(commits) + b"\0\0")
            if round_ % 2:
                leaver.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaver.close()
            comer = greeted(service)
            assert len(begun(comer, 5)) == 5
            comer.send(encode_request(Begin(), request_id=88))
            assert comer.answer().request_id == 88
            comer.close()
        load.wait_for_more(20)


def test_a_thousand_peers_are_served(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        peers = [greeted(service) for _ in range(1100)]
        for _ in range(3):
            for peer in peers:
                peer.send(encode_request(Begin(), request_id=5))
            starts = []
            for peer in peers:
                answer = peer.answer()
                assert answer.request_id == 5
                assert isinstance(answer.body, BeginReply)
                starts.append(answer.body.start_ts)
            assert len(set(starts)) == len(peers)
        for peer in peers:
            peer.close()
