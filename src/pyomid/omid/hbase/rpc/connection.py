"""Connections to one service of a server: `ServerConnection` is the protocol, with two ways to wait for replies.

    Connection                         for threads: a waiting thread reads the socket
    LoopConnection (`loop_client`)     for an event loop, which reads when the socket is ready

Threads share a `Connection`, which has no thread of its own. The first thread that waits for a reply becomes the
*reader*. It reads the socket for all waiting threads and gives each thread its reply. When its own reply has arrived,
it passes the role on. So a single caller needs no thread switch (a separate reader thread would cost 50-100 µs per
call), and many callers share one stream of pipelined calls.

An interrupt (Ctrl-C, lack of memory) may come at any line of a thread on which others depend. If that thread was only
waiting, only its own call is lost. If it had sent or received part of a frame, the stream is unusable, because the next
call's bytes would be read as the rest of the frame. Then the connection is closed, and each call in flight fails.
"""

from __future__ import annotations

import select
import socket
import ssl
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Generic, TypeVar

from pyomid import system
from pyomid.errors import Corruption
from pyomid.omid.hbase.rpc.failures import AuthenticationFailed, CallTimedOut, ConnectionLost, connection_lost
from pyomid.omid.hbase.rpc.frames import (
    REFUSED_CALL_ID,
    Address,
    Call,
    FrameAssembler,
    Reply,
    WrappedFrameAssembler,
    decode_reply,
    encode_call,
)
from pyomid.omid.hbase.rpc.handshake import Handshake
from pyomid.system import NO_SIGNAL, bound_sends, occupy_standard
from pyomid.tls import TlsSocket, probe

P = TypeVar("P")
"""The type of a call in flight."""

CONNECT_S_MAX: Final = 5.0

_TICK_MS: Final = 200
"""The interval at which the reader checks its deadline. Python's socket timeout would also apply to sending threads and
truncate their frames."""

_SEND_S_MAX: Final = 30.0
"""If a server receives or acknowledges nothing for this time, it counts as lost. For example, a firewall that forgot
the connection drops its packets without a reset."""


class _Opening:
    """A socket as `ByteStream`."""

    def __init__(self, opened: socket.socket | TlsSocket) -> None:
        self._socket = opened

    def send(self, data: bytes) -> None:
        self._socket.sendall(data, NO_SIGNAL)

    def read(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            if not (some := self._socket.recv(count - len(received))):
                raise ConnectionResetError("the server closed it during the handshake")
            received += some
        return received


class ServerConnection(ABC, Generic[P]):
    """The connection to one service of a server: opening, handshake, frames and call ids. After `ConnectionLost` a new
    connection must be opened."""

    def __init__(
        self,
        address: Address,
        service: str,
        handshake: Handshake,
        *,
        connect_timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect and authenticate. `connect_timeout_s` limits the wait for the server, but not the wait for the
        KDC."""
        self.address = address
        self._calls: dict[int, P] = {}
        self._next_id = 0
        self._lost: ConnectionLost | None = None
        self._may_need_tls = tls is None
        try:
            occupy_standard()
            sock = socket.create_connection(address, timeout=connect_timeout_s)
        except OSError as error:
            raise ConnectionLost(f"no connection to {address}: {error}") from error
        self._socket: socket.socket | TlsSocket = sock
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * _SEND_S_MAX))
            if tls is not None:
                self._socket = TlsSocket(tls.wrap_socket(sock, server_hostname=address.host))
            self._layer = handshake.perform(_Opening(self._socket), service, address.host)
            self._assembler = FrameAssembler() if self._layer is None else WrappedFrameAssembler(self._layer.unwrap)
            self._prepare_socket()
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError):
                raise self._failure(f"no connection to {address}: {error}", error) from error
            raise

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def close(self) -> None:
        self._lose(ConnectionLost(f"connection to {self.address} closed"))

    @abstractmethod
    def _prepare_socket(self) -> None:
        """Prepare the socket for calls."""

    @abstractmethod
    def _lose(self, reason: ConnectionLost) -> None:
        """Close the connection, and fail its calls in flight."""

    def _failure(self, text: str, error: BaseException) -> ConnectionLost:
        """Return the failure to raise for an error of the connection."""
        return connection_lost(text, self.address, error, may_need_tls=self._may_need_tls)

    def _new_id(self) -> int:
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        return self._next_id

    def _pieces(self, head: bytes, cells: bytes | bytearray | memoryview) -> Iterator[bytes | bytearray | memoryview]:
        """Yield the bytes of a frame in pieces, which must be sent in this order."""
        for piece in (head, cells) if self._layer is None else (self._layer.wrap(head + cells),):
            if piece:
                yield piece

    def _receive(self) -> Iterator[Reply]:
        """Read the socket once. Yields the replies that are now complete."""
        count = self._socket.recv_into(self._assembler.space())
        if count == 0:
            raise ConnectionResetError("the server closed it")
        for frame in self._assembler.filled(count or 0):
            reply = decode_reply(frame)
            self._may_need_tls = False
            yield reply

    def _answered_by(self, reply: Reply) -> list[P]:
        """Return the calls that the reply answers. If it refuses the connection, these are all calls, because the
        server performs none of them. If it is late and its caller has given up, there is no such call."""
        if reply.call_id == REFUSED_CALL_ID and reply.failure is not None:
            return list(self._calls.values())
        pending = self._calls.get(reply.call_id)
        return [] if pending is None else [pending]

    def _has_buffered(self) -> bool:
        """Return whether TLS has buffered bytes, which `poll` does not report."""
        return isinstance(self._socket, TlsSocket) and self._socket.pending() > 0

    def _timed_out(self) -> CallTimedOut:
        return CallTimedOut(f"{self.address} did not answer in time")


class PendingCall:
    """A call in flight. `woken` is locked while its thread waits for its reply or for the reader's role."""

    __slots__ = ("call_id", "failure", "reply", "waiting", "woken")

    def __init__(self, call_id: int) -> None:
        self.call_id = call_id
        self.reply: Reply | None = None
        self.failure: BaseException | None = None
        self.woken: threading.Lock | None = None
        self.waiting = False

    @property
    def is_done(self) -> bool:
        return self.reply is not None or self.failure is not None


class Connection(ServerConnection[PendingCall]):
    """A blocking connection. Its calls raise `CallTimedOut` or `ConnectionLost`."""

    def _prepare_socket(self) -> None:
        self._state = threading.Lock()
        self._sending = threading.Lock()
        self._reader: PendingCall | None = None
        bound_sends(self._socket, _SEND_S_MAX)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def start(self, call: Call, *, timeout_s: float) -> PendingCall:
        """Send a call. The same thread takes the reply with `finish`; replies may be taken in any order."""
        if threading.get_ident() in system.inside:
            system.refuse_nested()
        with self._state:
            call_id = self._new_id()
        frame = encode_call(call_id, call, max(1, int(timeout_s * 1000)))
        with self._state:  # after encoding: a call that cannot be encoded leaves no entry
            if self._lost is not None:
                raise self._lost.again()
            pending = self._calls[call_id] = PendingCall(call_id)
        try:
            with self._sending:
                self._send(frame)
        except OSError as error:
            raise (ConnectionLost(str(error)) if self._lost is None else self._lost.again()) from error
        return pending

    def _send(self, frame: tuple[bytes, bytes | bytearray | memoryview]) -> None:
        """Send a frame. If only part of it was sent, the connection is lost before another thread may send: the server
        would read the next frame's bytes as the rest of this one."""
        if self._lost is not None:
            raise self._lost.again()
        try:
            for piece in self._pieces(*frame):
                self._socket.sendall(piece, NO_SIGNAL)
        except BaseException as error:
            self._lose_by(error, "lost while sending")
            raise

    def finish(self, pending: PendingCall, *, timeout_s: float) -> Reply:
        """Return the reply to the call, or raise the call's error."""
        deadline_s = time.monotonic() + timeout_s
        if (me := threading.get_ident()) in system.inside:
            system.refuse_nested()
        try:
            system.inside[me] = sys._getframe()
            while not pending.is_done:
                if self._try_become_reader(pending):
                    self._read_until(pending, deadline_s)
                    self._pass_on_reader_role(pending)
                else:
                    self._wait_woken(pending, deadline_s)
        except BaseException:
            self._abandon(pending)
            raise
        finally:
            system.inside.pop(me, None)
        if pending.failure is not None:
            raise pending.failure
        assert pending.reply is not None
        return pending.reply

    def _try_become_reader(self, pending: PendingCall) -> bool:
        with self._state:
            if pending.is_done:
                return False
            if self._lost is not None:
                pending.failure = self._lost.again()
                return False
            if self._reader is None:
                self._reader = pending
                return True
            if pending.woken is None:
                pending.woken = threading.Lock()
                pending.woken.acquire()
            pending.waiting = True
            return False

    def _wait_woken(self, pending: PendingCall, deadline_s: float) -> None:
        if pending.woken is None or pending.is_done:
            return
        if not pending.woken.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            self._give_up(pending)
            # Another thread may have made this thread the reader meanwhile.
            self._pass_on_reader_role(pending)

    def _read_until(self, pending: PendingCall, deadline_s: float) -> None:
        is_torn = False
        try:
            while not pending.is_done:
                # Waiting is separate from reading: if an interrupt comes while waiting, nothing has been read.
                if self._has_buffered() or self._readable.poll(_TICK_MS):
                    is_torn = True
                    for reply in self._receive():
                        self._deliver(reply)
                    is_torn = False
                if time.monotonic() >= deadline_s:  # checked even if replies to other calls arrive all the time
                    self._give_up(pending)
        except BaseException as error:
            if is_torn or isinstance(error, OSError):
                self._lose_by(error, "lost")
            if not isinstance(error, (OSError, Corruption)):
                raise

    def _lose_by(self, error: BaseException, what: str) -> None:
        """Close the connection because of an error, even if an interrupt comes while the reason is determined."""
        text = f"connection to {self.address} {what}: {error!r}"
        reason = self._lost or ConnectionLost(text)
        try:
            if self._lost is None:
                reason = self._failure(text, error)
        finally:
            self._lose(reason)

    def _failure(self, text: str, error: BaseException) -> ConnectionLost:
        """Return the failure to raise for an error of the connection. If the connection has no TLS and the server never
        replied, probe whether the port speaks TLS, which takes at most a few seconds."""
        if self._may_need_tls and isinstance(error, OSError):
            hint = probe(self.address, None, f"the HBase server {self.address}", "hbaseTls")
            if hint is not None:
                return AuthenticationFailed(hint)
        return connection_lost(text, self.address, error)

    def _deliver(self, reply: Reply) -> None:
        with self._state:
            for pending in self._answered_by(reply):
                pending.reply = reply
                self._wake(pending)
                self._calls.pop(pending.call_id, None)  # after the wake: if interrupted before, `_lose` wakes the call

    def _give_up(self, pending: PendingCall) -> None:
        """C11: end a call at its deadline, whatever else the connection receives."""
        with self._state:
            if not pending.is_done:
                self._calls.pop(pending.call_id, None)
                pending.failure = self._timed_out()
            pending.waiting = False

    def _pass_on_reader_role(self, own: PendingCall) -> None:
        with self._state:
            if self._reader is own:
                self._reader = None
            if self._reader is not None:
                return
            for pending in self._calls.values():
                if pending.waiting:
                    self._wake(pending)
                    return

    def _abandon(self, own: PendingCall) -> None:
        """Clean up after an interrupt of the call's thread: drop the call, and make another thread the reader."""
        with self._state:
            self._calls.pop(own.call_id, None)
            own.waiting = False
        if self._lost is not None:
            self._lose(self._lost)
        self._pass_on_reader_role(own)

    @staticmethod
    def _wake(pending: PendingCall) -> None:
        """Wake a call's thread. A needless wake is harmless: the thread checks the state of its call again."""
        if pending.waiting and pending.woken is not None:
            if pending.woken.locked():
                pending.woken.release()
            pending.waiting = False

    def _lose(self, reason: ConnectionLost) -> None:
        """Close the connection, and fail its calls in flight. If an interrupt ends this early, a second call completes
        it."""
        with self._state:
            if self._lost is None:
                self._lost = reason
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the reader
            self._socket.close()
            for pending in list(self._calls.values()):
                pending.failure = pending.failure or self._lost.again()
                self._wake(pending)
                self._calls.pop(pending.call_id, None)
