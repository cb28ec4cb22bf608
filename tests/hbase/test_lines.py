"""The two proxies of these tests: one inspects and drops frames, one delays them; both deliver the rest."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from held_line import HeldLine

from frame_proxy import FrameProxy
from pyomid.wire.frames import FrameCutter, frame

pytestmark = pytest.mark.fast


class Echo:
    """A server that keeps what it gets, and sends it back."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._changed = threading.Condition()
        self.received = b""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def wait_for(self, content: bytes) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: content in self.received, timeout=60.0), "it never came"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        while data := client.recv(1 << 16):
            with self._changed:
                self.received += data
                self._changed.notify_all()
            try:
                client.sendall(data)
            except OSError:
                return


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


def test_held_frames_arrive_after_their_sender_died(echo: Echo) -> None:
    with HeldLine(echo.port) as line:
        to = int(line.python[1].split("of, to = ")[1].split("\n")[0].split(",")[1])
        with socket.create_connection(("127.0.0.1", to)) as sender:
            sender.sendall(b"first")
            echo.wait_for(b"first")
            line.hold()
            sender.sendall(b"second")
            line.wait_until_held(b"second")
        assert echo.received == b"first"
        line.release()
        echo.wait_for(b"firstsecond")


def test_a_dropped_frame_is_seen_and_the_others_pass(echo: Echo) -> None:
    with FrameProxy("127.0.0.1", echo.port) as proxy:
        host, _, port = proxy.address.partition(":")
        proxy.drop_next(lambda passed: not passed.from_client and passed.payload == b"b")
        with socket.create_connection((host, int(port)), timeout=60.0) as client:
            client.sendall(frame(b"a") + frame(b"b") + frame(b"c"))
            cutter, answers = FrameCutter(), list[bytes]()
            while len(answers) < 2:
                answers += cutter.feed(client.recv(1 << 16))
            assert answers == [b"a", b"c"]
            assert [each.payload for each in proxy.frames if not each.from_client] == [b"a", b"b", b"c"]
            proxy.cut()
            assert client.recv(1) == b"", "the connection broke"


def test_waiting_for_a_frame_that_never_comes_is_a_failure(echo: Echo) -> None:
    with FrameProxy("127.0.0.1", echo.port) as proxy, pytest.raises(AssertionError, match="0 of 1 frames"):
        proxy.wait_for(lambda passed: True, deadline_s=0.05)
