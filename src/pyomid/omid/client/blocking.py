"""The blocking session with a TSO. All threads of the process share one connection and pipeline their requests.

No thread is reserved for reading. A thread that waits while no other thread reads becomes the leader, and reads for
all. The other threads (followers) sleep until their reply arrives, or until the leader has its own reply and hands
over. A request of a single thread costs only one send and one receive.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from operator import methodcaller
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, Unpack

from pyomid import system
from pyomid.coroutines import Blocking, Effect, Handler, Pause, drive
from pyomid.errors import Misuse, OmidError
from pyomid.omid.client.request_retry import (
    CONNECT_FAILS,
    LOOK_S,
    Attempt,
    ConnectionBroken,
    SessionBase,
    SessionOptions,
    Silence,
    broke,
    is_closed,
    no_tso,
    not_in_time,
    others_connect,
    this_process,
)
from pyomid.omid.ports import CommitTable
from pyomid.omid.wire.client_protocol import REPORT_S, ClientProtocol, TsoCalls
from pyomid.omid.wire.messages import Answer, Request
from pyomid.ports import Clock, Sleep
from pyomid.types import BeginReply, SealOutcome

T = TypeVar("T")

Connect = Callable[[], socket.socket]
"""A function that finds the current TSO and returns a new connection to it. It raises `Unavailable`, or `Misuse` if
retrying cannot help."""

RECEIVE_BYTES: Final = 1 << 16

FORGOTTEN_S: Final = 60.0
"""How often an idle reporting thread checks whether its session is garbage."""


class TsoSession(SessionBase["_Connection"], TsoCalls):
    """An implementation of `ports.Tso` over a connection. Thread-safe. A forked child gets a connection of its own
    (C5)."""

    def __init__(
        self,
        connect: Connect,
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
        **options: Unpack[SessionOptions],
    ) -> None:
        super().__init__(clock=clock, **options)
        self._connect = connect
        self._handlers: dict[type[Effect[Any]], Handler] = {
            Pause: lambda e: sleep(e.pause_s),
            Blocking: methodcaller("call"),
            Attempt: self._attempt,
        }
        self._connecting = threading.RLock()
        """A lock with an owner. A thread that was interrupted while it acquired the lock can find out whether it must
        release it."""
        self._reporter = _Reporter(self)

    # ── ports.Tso ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def holder(self) -> str:
        return this_process()

    @property
    def extended(self) -> bool:
        """Whether the last connected TSO supports pyomid's extensions: leases, branches, seals. Raises `Unavailable` if
        there was never a connection and no TSO replies."""
        self._meet()
        assert self._extended is not None
        return self._extended

    @property
    def write_set_ids_max(self) -> int:
        self._meet()
        return self._write_set_ids_max

    def _meet(self) -> None:
        """Connect to a TSO, unless there was a connection before."""
        if self._extended is None:
            self.begin().end()  # every TSO replies to a begin, and a begin is retried until a TSO serves it

    def begin(self, *, not_before: int = 0) -> BeginReply:
        return drive(self.beginning(not_before), self._handlers)

    def close(self) -> None:
        """Close the session. Later calls raise `Misuse`; calls in progress raise `Unavailable`."""
        self._closed = True
        if system.here is self._made_in:
            self._reporter.stop()
            self.report_open_starts()
        connection, self._connection = self._connection, None
        if connection is not None and system.here is self._made_in:
            connection.close(ConnectionBroken("the session was closed", sent=True))

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask_for(self, request: Request, kind: type[T]) -> T:
        return drive(self.asking(request, kind), self._handlers)

    def _attempt(self, effect: Attempt) -> Answer:
        if (me := threading.get_ident()) in system.inside:
            system.refuse_nested()
        try:
            system.inside[me] = sys._getframe()
            return self._connected(effect.timeout_s).ask(effect.request, effect.timeout_s)
        finally:
            system.inside.pop(me, None)

    def _connected(self, timeout_s: float) -> _Connection:
        """Return the current connection, or a new one if there is none or it broke."""
        self._check_open()
        if system.here is not self._made_in:
            self._after_fork()
        connection = self._connection
        if connection is not None and not connection.broken:
            return connection
        connecting = self._connecting
        try:
            if not connecting.acquire(timeout=self._retry_s):
                raise others_connect(self._retry_s)
            connection = self._connection
            if connection is None or connection.broken:
                connection = self._open(timeout_s)
            return connection
        finally:
            try:  # noqa: SIM105 - no call may precede the release: an interrupt could come between
                connecting.release()
            except RuntimeError:
                pass  # the lock was not acquired

    def _open(self, timeout_s: float) -> _Connection:
        protocol = self._new_protocol()
        try:
            connection = _Connection(
                self._connect(), protocol, timeout_s=timeout_s, clock=self._clock, has_moved=self._has_moved
            )
        except CONNECT_FAILS as error:
            raise no_tso(error) from error
        return self._keep(connection, protocol)

    def _report_soon(self) -> None:
        self._reporter.wake()

    def _after_fork(self) -> None:
        """Replace all state inherited from the parent process: the socket, whose replies belong to the parent, and the
        locks."""
        self._made_in = system.here
        self._connection = None
        self._connecting = threading.RLock()
        self._open_starts = self._new_open_starts()
        self._reporter = _Reporter(self)


class SharedTableSession(TsoSession):
    """A session with the TSO of a store (HBase) to whose commit table clients may write. Closing it leaves the table
    open.

    A TSO that supports pyomid's extensions places invalidation markers itself. With a Java TSO the client places them,
    as Java clients do: for a start of an earlier epoch (`protocol.reading`; a Java TSO announces its epoch in a znode),
    and for its own start (`protocol.commit`). No other client received that outcome, so a commit entry that lands after
    the marker changes nothing.
    """

    def __init__(self, connect: Connect, commit_table: CommitTable, **options: Any) -> None:
        super().__init__(connect, **options)
        self._commit_table = commit_table

    def seal(self, starts: Sequence[int]) -> list[SealOutcome]:
        return super().seal(starts) if not starts or self.extended else self._commit_table.seal_many(starts)


class _Reporter:
    """Reports a session's open starts to the TSO periodically, in a thread of its own. The thread sleeps while nothing
    changes, and ends with the session."""

    def __init__(self, session: TsoSession) -> None:
        self._session = weakref.ref(session)
        self._is_awake = False
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._running = threading.Lock()
        """Held until `stop`. Waiting for this lock happens in C, as for the queue: an interrupted wait for an `Event`
        may leave its lock held."""
        self._running.acquire()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Note that the open starts changed, and start the thread if there is none."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="pyomid-open-starts", daemon=True)
            with contextlib.suppress(RuntimeError, MemoryError):  # without a thread, open starts hold W until their age
                thread.start()
                self._thread = thread
        if not self._is_awake:
            self._is_awake = True
            self._wakes.put(None)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was stopped before
            self._running.release()
        self._wakes.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(REPORT_S)

    def _run(self) -> None:
        try:
            while not self._running.acquire(timeout=REPORT_S) and self._report():
                with contextlib.suppress(Empty):
                    self._wakes.get(timeout=0 if self._is_awake else FORGOTTEN_S)
        finally:  # after an error, the next begin starts a new thread
            self._thread = None
            self._is_awake = False

    def _report(self) -> bool:
        """Report the open starts. Returns False if the session is garbage."""
        session = self._session()
        if session is None:
            return False
        if not session.report_open_starts():
            self._is_awake = False
            if session.report_open_starts():  # a begin came meanwhile
                self._is_awake = True
        return True


class _Slot:
    """A request that waits for its reply."""

    __slots__ = ("answer", "error", "key", "leads", "wake")

    def __init__(self) -> None:
        self.key = 0
        self.answer: Answer | None = None
        self.error: OmidError | None = None
        self.leads = False
        self.wake = threading.Lock()
        self.wake.acquire()

    def signal(self) -> None:
        try:  # noqa: SIM105 - suppress is ten times slower
            self.wake.release()
        except RuntimeError:
            pass  # it was signalled already


class _Connection:
    """One socket, with all threads that wait on it.

    `close` shuts the socket down, but the descriptor is closed only after the last thread has left. Otherwise the next
    connection could get the same number, and a thread about to enter `poll` would wait on that connection.
    """

    def __init__(
        self,
        sock: socket.socket,
        protocol: ClientProtocol,
        *,
        timeout_s: float,
        clock: Clock,
        has_moved: Callable[[], bool] | None,
    ) -> None:
        self.protocol = protocol
        self.broken = False
        self._sock = sock
        system.keep_from_children(sock)
        self._release = weakref.finalize(self, sock.close)
        self._release.atexit = False
        self._clock = clock
        self._has_moved = has_moved
        self._sending = threading.Lock()
        self._state = threading.Lock()
        self._slots: dict[int, _Slot] = {}
        self._has_leader = False
        self._silence = Silence()
        self._pending: Callable[[], int] | None = getattr(sock, "pending", None)
        """Returns the number of bytes that TLS has decrypted already; the system's poll does not see them."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._shake_hands(timeout_s)
        system.bound_sends(sock, timeout_s)

    def ask(self, request: Request, timeout_s: float) -> Answer:
        """Send the request and return the reply, or raise `ConnectionBroken`. If this thread is interrupted at any
        point, the other threads continue to read, or get an error."""
        slot = _Slot()
        try:
            try:
                self._send(request, slot)
                return self._await(slot, self._clock() + timeout_s)
            finally:
                with self._state:
                    self._slots.pop(slot.key, None)
                    if slot.leads:
                        self._hand_over(slot)
                    if self.broken and not self._slots:
                        self._release_if_left()
        except OmidError:
            raise
        except BaseException:
            if slot.leads or slot.key in self._slots or self.broken:  # interrupted while it left, or during close
                self.close(ConnectionBroken("the thread that read for all others was interrupted", sent=True))
            raise

    def send_report(self, compose: Callable[[], Request]) -> None:
        """Send a report, which has no reply. It is composed when no other request can be sent before it."""
        self._send(compose, None)

    def close(self, why: ConnectionBroken) -> None:
        """Close the connection and fail every waiting thread with `why`. If it was interrupted, call it again."""
        with self._state:
            self.broken = True
            slots = list(self._slots.values())
        for slot in slots:
            if slot.answer is None and slot.error is None:
                slot.error = why
            slot.signal()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._state:
            if not self._slots:
                self._release_if_left()

    def _release_if_left(self) -> None:
        """Close the socket's descriptor if no thread sends. The caller has checked that none waits, and none can begin
        to. Otherwise the last thread or the destructor closes it."""
        if not self._sending.locked():
            self._release()

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, request: Request | Callable[[], Request], slot: _Slot | None) -> None:
        with self._sending:
            try:
                request = request() if callable(request) else request
                key, frames = self.protocol.ask(request)
                if slot is not None:
                    with self._state:
                        slot.key = key
                        self._slots[key] = slot
                if self.broken:
                    raise is_closed()
                self._sock.sendall(frames, system.NO_SIGNAL)
            except OmidError:
                raise
            except (OSError, ValueError) as error:
                lost = ConnectionBroken(f"sending to the TSO failed: {error}", sent=True)
                self.close(lost)
                raise lost from error
            except BaseException:
                # Half a frame may have been sent; or none, although the replies of a Java TSO are expected in order.
                self.close(ConnectionBroken("sending to the TSO was interrupted", sent=True))
                raise

    # ── receiving ────────────────────────────────────────────────────────────────────────────────────────────────

    def _shake_hands(self, timeout_s: float) -> None:
        deadline_s = self._clock() + timeout_s
        try:
            self._sock.settimeout(timeout_s)
            self._sock.sendall(self.protocol.handshake())
            while self.protocol.server is None:
                left_s = deadline_s - self._clock()
                if left_s <= 0:
                    raise TimeoutError(f"incomplete after {timeout_s:.1f} s")
                if not self._hears(left_s):
                    continue
                self._sock.settimeout(left_s)
                chunk = self._sock.recv(RECEIVE_BYTES)
                if not chunk:
                    raise ConnectionBroken("the TSO closed the connection before its handshake", sent=False)
                list(self.protocol.feed(chunk))
        except OSError as error:
            raise ConnectionBroken(f"the handshake with the TSO failed: {error}", sent=False) from error

    def _await(self, slot: _Slot, deadline_s: float) -> Answer:
        with self._state:
            if not self._has_leader:
                slot.leads = self._has_leader = True
        while slot.answer is None and slot.error is None:
            if slot.leads:
                self._lead(slot, deadline_s)
            elif not slot.wake.acquire(timeout=max(0.0, deadline_s - self._clock())):
                self._give_up(slot)
        if slot.answer is not None:
            return slot.answer
        assert slot.error is not None
        raise slot.error

    def _lead(self, slot: _Slot, deadline_s: float) -> None:
        """Read once, and give each waiting thread its reply."""
        left_s = deadline_s - self._clock()
        reads = False
        try:
            if left_s <= 0:
                self._give_up(slot)
                return
            if not self._hears(left_s):
                return
            reads = True
            chunk = self._sock.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
            if not chunk:
                raise ConnectionResetError("closed by the TSO")
            for key, answer in self.protocol.feed(chunk):
                receiver = self._slots.get(key)
                if receiver is not None:
                    receiver.answer = answer
                    if receiver is not slot:
                        receiver.signal()
        except BlockingIOError:
            return
        except (OSError, ValueError, OmidError) as error:
            self.close(broke(error))
        except BaseException:
            if reads:  # the received bytes are lost, perhaps with the beginning of the next reply
                self.close(ConnectionBroken("reading from the TSO was interrupted", sent=True))
            raise

    def _hears(self, left_s: float) -> bool:
        """Wait for bytes; return whether any came. Raises `ConnectionError` if another TSO leads now, because this one
        may never reply."""
        patience_s = left_s if self._has_moved is None else min(left_s, LOOK_S)
        if (self._pending is not None and self._pending()) or self._poll.poll(patience_s * 1000):
            self._silence.ends()
            return True
        if self._has_moved is not None:
            self._silence.goes_on(patience_s)
            if self._has_moved():
                raise ConnectionAbortedError("no reply, and another TSO leads")
        return False

    def _give_up(self, slot: _Slot) -> None:
        if slot.answer is None:
            self.close(not_in_time())

    def _hand_over(self, leader: _Slot) -> None:
        """Make the next waiting thread the reader. The caller holds `_state`. The leader stays leader if no thread
        waits for it."""
        for slot in self._slots.values():
            if slot is not leader and slot.answer is None and slot.error is None:
                slot.leads = True
                slot.signal()
                leader.leads = False
                return
        self._has_leader = leader.leads = False


def read_token(path: str) -> bytes:
    """Return the token that a client presents to a TSO with `--token-file`: the file's content, stripped."""
    try:
        token = Path(path).read_bytes().strip()
    except OSError as error:
        raise Misuse(f"cannot read token file {path}: {error.strerror}") from error
    if not token:
        raise Misuse(f"token file {path} is empty")
    return token
