"""One blocking connection, shared by threads, without a thread of its own.

Whoever waits for a reply reads the socket for everybody: the first waiting thread is the *reader*, puts the replies
of others into their calls, and hands the role on when its own reply is there. So a lone caller pays no switch of
threads (a reader thread costs 50-100 µs a call), and many callers share one stream of pipelined calls.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Final

from pyomid.errors import Corruption
from pyomid.storage.hbase.failures import CallTimedOut, ConnectionLost
from pyomid.storage.hbase.frames import Address, Call, FrameAssembler, Reply, decode_reply, encode_call
from pyomid.storage.hbase.handshake import Handshake, HandshakeSteps

_TICK_US: Final = 200_000
"""How long one read blocks before its deadline is looked at. In the kernel (SO_RCVTIMEO): Python's own time-out
would hold for the threads that send as well, and cut their frames in the middle."""

_SEND_S_MAX: Final = 30
"""A server that takes nothing for so long is lost."""


class PendingCall:
    """A call on its way. `woken` is held by its waiting thread until there is something to do."""

    __slots__ = ("call_id", "failure", "reply", "waiting", "woken")

    def __init__(self, call_id: int) -> None:
        self.call_id = call_id
        self.reply: Reply | None = None
        self.failure: BaseException | None = None
        self.woken: threading.Lock | None = None
        self.waiting = False

    @property
    def is_settled(self) -> bool:
        return self.reply is not None or self.failure is not None


class Connection:
    """A service of one server. Raises `ConnectionLost` or `CallTimedOut`; after the first, open another."""

    def __init__(self, address: Address, service: str, handshake: Handshake, *, connect_timeout_s: float) -> None:
        self.address = address
        self._assembler = FrameAssembler()
        self._calls: dict[int, PendingCall] = {}
        self._next_id = 0
        self._state = threading.Lock()
        self._sending = threading.Lock()
        self._reader_busy = False
        self._lost: str | None = None
        try:
            self._socket = socket.create_connection(address, timeout=connect_timeout_s)
        except OSError as error:
            raise ConnectionLost(f"no connection to {address}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            _introduce(self._socket, handshake.steps(service))
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError):
                raise ConnectionLost(f"no connection to {address}: {error}") from error
            raise
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, _TICK_US))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S_MAX, 0))

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def start(self, call: Call, *, timeout_s: float) -> PendingCall:
        """Sends the call; its reply is taken with `finish`, by the same thread, in any order."""
        with self._state:
            if self._lost is not None:
                raise ConnectionLost(self._lost)
            self._next_id = (self._next_id + 1) & 0x7FFFFFFF
            pending = self._calls[self._next_id] = PendingCall(self._next_id)
        head, cells = encode_call(pending.call_id, call, max(1, int(timeout_s * 1000)))
        try:
            with self._sending:
                self._socket.sendall(head)
                if cells:
                    self._socket.sendall(cells)
        except OSError as error:
            self._lose(f"connection to {self.address} lost while sending: {error}")
            raise ConnectionLost(str(error)) from error
        return pending

    def finish(self, pending: PendingCall, *, timeout_s: float) -> Reply:
        """The reply, or what became of the call instead."""
        deadline_s = time.monotonic() + timeout_s
        while not pending.is_settled:
            if self._becomes_reader(pending):
                try:
                    self._read_until(pending, deadline_s)
                finally:
                    self._hand_on_reading()
            else:
                self._wait_woken(pending, deadline_s)
        if pending.failure is not None:
            raise pending.failure
        assert pending.reply is not None
        return pending.reply

    def close(self) -> None:
        self._lose(f"connection to {self.address} closed")

    def _becomes_reader(self, pending: PendingCall) -> bool:
        with self._state:
            if pending.is_settled:
                return False
            if not self._reader_busy:
                self._reader_busy = True
                return True
            if pending.woken is None:
                pending.woken = threading.Lock()
                pending.woken.acquire()
            pending.waiting = True
            return False

    def _wait_woken(self, pending: PendingCall, deadline_s: float) -> None:
        if pending.woken is None or pending.is_settled:
            return
        if not pending.woken.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            self._give_up(pending)
            # The role of reader may have been handed to this very call in the meantime: it must not end here.
            self._wake_next_reader()

    def _read_until(self, pending: PendingCall, deadline_s: float) -> None:
        try:
            while not pending.is_settled:
                try:
                    count = self._socket.recv_into(self._assembler.space())
                except BlockingIOError:
                    if time.monotonic() >= deadline_s:
                        self._give_up(pending)
                    continue
                if count == 0:
                    raise ConnectionResetError("the server closed it")
                for frame in self._assembler.filled(count):
                    self._settle(decode_reply(frame))
        except (OSError, Corruption) as error:
            self._lose(f"connection to {self.address} lost: {error}")

    def _settle(self, reply: Reply) -> None:
        with self._state:
            pending = self._calls.pop(reply.call_id, None)
            if pending is None:
                return  # Its caller gave up: a late answer to nobody.
            pending.reply = reply
            self._wake(pending)

    def _give_up(self, pending: PendingCall) -> None:
        with self._state:
            if not pending.is_settled:
                self._calls.pop(pending.call_id, None)
                pending.failure = CallTimedOut(f"{self.address} did not answer in time")
            pending.waiting = False

    def _hand_on_reading(self) -> None:
        with self._state:
            self._reader_busy = False
        self._wake_next_reader()

    def _wake_next_reader(self) -> None:
        with self._state:
            if self._reader_busy:
                return
            for pending in self._calls.values():
                if pending.waiting:
                    self._wake(pending)
                    return

    def _wake(self, pending: PendingCall) -> None:
        if pending.waiting and pending.woken is not None:
            pending.waiting = False
            pending.woken.release()

    def _lose(self, reason: str) -> None:
        with self._state:
            if self._lost is None:
                self._lost = reason
                self._socket.close()
            pending_calls, self._calls = list(self._calls.values()), {}
            for pending in pending_calls:
                pending.failure = ConnectionLost(self._lost)
                self._wake(pending)


def _introduce(opened: socket.socket, steps: HandshakeSteps) -> None:
    """Not a byte more is read than the handshake wants: what follows belongs to the calls."""
    request: bytes | int | None = next(steps, None)
    while request is not None:
        received = b""
        if isinstance(request, bytes):
            opened.sendall(request)
        else:
            while len(received) < request:
                piece = opened.recv(request - len(received))
                if not piece:
                    raise ConnectionResetError("the server closed it during the handshake")
                received += piece
        try:
            request = steps.send(received)
        except StopIteration:
            request = None
