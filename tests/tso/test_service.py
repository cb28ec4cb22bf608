"""The service started by an operator, on TCP: what it serves, and that a refused peer disturbs no other."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_process import COMMAND, Service, cell, served

from pyomid.errors import Misuse, OmidError, Unavailable
from pyomid.omid.client.blocking import TsoSession
from pyomid.omid.wire.codec import Handshake, HandshakeReply, encode_request
from pyomid.omid.wire.frames import frame
from pyomid.omid.wire.messages import Begin, Refused
from pyomid.tls import tcp_connector
from pyomid.types import AbortReason, BeginReply, CommitReply, CommitRequest

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

A, B = 1 << 60, 2 << 60


@pytest.fixture(scope="module", params=["compiled", "plain"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    limits = {"frame_bytes_max": 4096, "handshake_s_max": 1.0, "frame_s_max": 1.0}
    folder = tmp_path_factory.mktemp("service")
    with served(folder, limits=limits, compiled=request.param == "compiled") as running:
        yield running


def test_one_transaction_after_the_other(service: Service) -> None:
    tso = service.session()
    first, second = tso.begin(), tso.begin()
    commit = tso.commit(CommitRequest(first.start_ts, (A,)))
    assert commit.committed
    lost = tso.commit(CommitRequest(second.start_ts, (A,)))
    assert (lost.reason, lost.conflict_ts) == (AbortReason.CONFLICT, commit.commit_ts)
    assert tso.begin(not_before=lost.conflict_ts).start_ts > commit.commit_ts
    assert first.epoch == tso.epoch == tso.status().epoch > 0
    tso.close()


def test_many_threads_share_one_connection_and_every_answer_finds_its_request(service: Service) -> None:
    tso = service.session()
    done: list[tuple[int, int]] = []

    def work() -> None:
        for _ in range(100):
            start_ts = tso.begin().start_ts
            reply = tso.commit(CommitRequest(start_ts, (cell(start_ts),)))
            assert reply.start_ts == start_ts
            assert reply.commit_ts > start_ts
            done.append((start_ts, reply.commit_ts))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stamps = [ts for pair in done for ts in pair]
    assert len(stamps) == len(set(stamps)) == 1600
    tso.close()


def test_a_write_set_over_the_frame_limit_goes_in_parts(service: Service) -> None:
    tso = service.session()
    cells = tuple(map(cell, range(3000)))
    first, second = tso.begin().start_ts, tso.begin().start_ts
    assert tso.commit(CommitRequest(first, cells)).committed
    for each in (cells[0], cells[1500], cells[-1]):
        assert not tso.commit(CommitRequest(second, (each,))).committed
    tso.close()


def test_a_java_client_gets_replies_of_its_protocol(service: Service) -> None:
    peer = service.raw()
    assert peer.greet(Handshake()).body == HandshakeReply(True)
    for _ in range(3):
        peer.send(encode_request(Begin(), extended=False))
    starts = [peer.answer().body for _ in range(3)]
    assert all(isinstance(s, BeginReply) and s.epoch == 0 for s in starts)
    start_ts = starts[0].start_ts  # type: ignore[union-attr]
    peer.send(encode_request(CommitRequest(start_ts, (B,)), extended=False))
    reply = peer.told(CommitReply)
    assert reply.committed
    peer.send(encode_request(CommitRequest(start_ts + 1, (B,)), extended=False))
    malformed = peer.told(CommitReply)
    assert not malformed.committed
    peer.close()


BAD = {
    "a request before the handshake": (False, encode_request(Begin()), "before the handshake"),
    "two requests in one message": (True, frame(b"\x0a\x00\x22\x02\x08\x01"), "exactly one"),
    "an unknown kind": (True, frame(b"\xfa\x07\x00"), "exactly one"),
    "an oversize frame": (True, (4097).to_bytes(4, "big"), "over the limit of 4096"),
    "no protobuf": (True, frame(b"\xff\xff\xff"), "not a Request"),
    "a second handshake": (True, frame(b"\x1a\x02\x0a\x00"), "second handshake"),
}


@pytest.mark.parametrize("name", BAD)
def test_t11_a_protocol_error_closes_only_that_peer(service: Service, name: str) -> None:
    greets, data, text = BAD[name]
    good, bad = service.session(), service.raw()
    start_ts = good.begin().start_ts
    if greets:
        bad.greet()
    bad.send(data)
    if greets:
        refused = bad.told(Refused)
        assert text in refused.message
    assert bad.is_closed_by_peer()
    assert service.has_logged(text)
    assert good.commit(CommitRequest(start_ts, (hash(name),))).committed
    bad.close()
    good.close()


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x01\x00half a frame"], ids=["no handshake", "half a frame"])
def test_a_peer_with_an_overdue_frame_is_cut_off(service: Service, data: bytes) -> None:
    peer = service.raw()
    if data:
        peer.greet()
        peer.send(data)
    assert peer.is_closed_by_peer()
    peer.close()


def test_the_token_is_required(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    with served(tmp_path, "--token-file", str(token)) as running:
        good = running.session(token=b"secret")
        assert good.begin().start_ts
        for wrong in (b"", b"Secret"):
            with pytest.raises(Misuse, match="token"):
                running.session(token=wrong).begin()
        good.close()


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--listen", "nowhere"], 3, "HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--flushes-in-flight", "many"], 2, "--flushes-in-flight: invalid value 'many'"),
        (["--listen", "127.0.0.1:0", "--store", "redis://x"], 3, "redis"),
        (["--listen", "127.0.0.1:0", "--flushes-in-flight", "0"], 3, "flushes_in_flight_max is 0"),
        ([], 3, "no address to serve on"),
        (["--listen", "127.0.0.1:0", "--tls-key", "x"], 3, "--tls-cert"),
        (["--listen", "0.0.0.0:0", "--token-file", __file__], 3, "--token-in-clear"),
    ],
)
def test_a_wrong_command_line_has_a_clear_error(options: list[str], code: int, text: str) -> None:
    ended = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60)
    assert ended.returncode == code
    assert text in ended.stderr


def test_a_port_in_use_has_a_clear_error(service: Service) -> None:
    ended = subprocess.run([*COMMAND, "--listen", service.address], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 3
    assert service.address in ended.stderr
    assert "in use" in ended.stderr


def test_options_come_from_file_environment_and_command_line(tmp_path: Path) -> None:
    from argparse import ArgumentParser

    from pyomid.cli import tso

    config = tmp_path / "tso.yaml"
    config.write_text("flushes-in-flight: 3\nlisten: 1.2.3.4:5\nconnections: 1000\n")
    parser = ArgumentParser()
    tso.add_command(parser.add_subparsers())
    arguments = parser.parse_args(["tso", "--config", str(config), "--listen", "9.9.9.9:9"])
    options = tso.read_options(arguments, {"PYOMID_TSO_FLUSHES_IN_FLIGHT": "4", "PYOMID_TSO_LISTEN": "8.8.8.8:8"})
    assert (options["listen"], options["flushes-in-flight"], options["connections"]) == ("9.9.9.9:9", 4, 1000)
    assert options["leader-lease"] == 10.0
    config.write_text("flight: 3\n")
    with pytest.raises(Misuse, match="unknown option 'flight'"):
        tso.read_options(arguments, {})


def test_a_dead_tso_is_unavailable_and_a_sent_commit_unknown(tmp_path: Path) -> None:
    with served(tmp_path) as running:
        tso = running.session(retry_s=0.5)
        start_ts = tso.begin().start_ts
        running.process.kill()
        running.process.wait()
        with pytest.raises(OmidError) as caught:
            tso.commit(CommitRequest(start_ts, (A,)))
        assert caught.type.__name__ in ("OutcomeUnknown", "Unavailable")
        with pytest.raises(Unavailable):
            tso.begin()
        with pytest.raises(Misuse, match="HOST:PORT"):
            TsoSession(tcp_connector("nowhere"))
