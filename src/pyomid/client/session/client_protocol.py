"""What a client and a TSO say to each other on one connection, without the connection: requests in, bytes out;
bytes in, answers out. `session` (threads) and `async_session` (asyncio) both speak it.

pyomid's TSO echoes a request id. A Java TSO does not: it answers begins in order, commits by start and fences by
table, so that is how its answers are matched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pyomid.errors import Misuse, Unavailable
from pyomid.types import BeginReply, CommitReply, CommitRequest
from pyomid.wire.frames import FRAME_BYTES_MAX, FrameCutter, ProtocolError
from pyomid.wire.messages import Answer, Begin, Complete, Fence, FenceReply, Refused, Request
from pyomid.wire.requests import EXTENSIONS_VERSION, Handshake, encode_handshake, encode_request
from pyomid.wire.responses import HandshakeReply, decode_answer


class ClientProtocol:
    """One connection's state. Not thread-safe: its owner serialises `ask`, and `feed`, each with a lock of its own."""

    def __init__(self, *, token: bytes = b"", commit_retry_s: float = 0.0, database_id: bytes = b"") -> None:
        """`database_id`: of the database that this client knows, if it met one that told."""
        self._handshake = Handshake(EXTENSIONS_VERSION, token, commit_retry_s)
        self._database_id = database_id
        self._cutter = FrameCutter(FRAME_BYTES_MAX)
        self._next_key = 1
        self._frame_bytes_max = FRAME_BYTES_MAX
        self._begins: deque[int] = deque()
        self._commits: dict[int, deque[int]] = {}
        self._fences: dict[int, deque[int]] = {}
        self.server: HandshakeReply | None = None

    @property
    def extended(self) -> bool:
        """Whether the TSO speaks pyomid's extensions."""
        return self.server is not None and self.server.extensions == EXTENSIONS_VERSION

    @property
    def database_id(self) -> bytes:
        """For the next connection's."""
        return self._database_id

    def greeting(self) -> bytes:
        """What to send first; nothing else before `feed` has seen the answer."""
        return encode_handshake(self._handshake)

    def ask(self, request: Request) -> tuple[int, bytes]:
        """A key to find the answer by, and the bytes to send. `Misuse` where this TSO cannot be asked that."""
        key = self._next_key
        frames = encode_request(request, request_id=key, extended=self.extended, frame_bytes_max=self._frame_bytes_max)
        self._next_key += 1
        if not self.extended:
            self._expect(key, request)
        return key, frames

    def feed(self, chunk: bytes) -> Iterator[tuple[int, Answer]]:
        """Every answer that `chunk` completes, by key. `ProtocolError`: the connection is of no more use."""
        for payload in self._cutter.feed(chunk):
            outgoing = decode_answer(payload)
            body = outgoing.body
            if isinstance(body, HandshakeReply):
                self._greet(body)
            elif self.server is None or (isinstance(body, Refused) and not outgoing.request_id):
                raise self._rejected(body)
            else:
                key = outgoing.request_id or self._matched(body)
                if key:
                    yield key, body

    def _greet(self, reply: HandshakeReply) -> None:
        if not reply.compatible:
            raise ProtocolError(
                "the TSO calls this client not compatible with it: it speaks another version of Omid's protocol, "
                "and pyomid works with its own TSO and with that of Apache Omid 1.1"
            )
        if self._database_id and reply.database_id not in (b"", self._database_id):
            raise Misuse(
                f"the database {self._database_id.hex()[:8]} was dropped, and another one, "
                f"{reply.database_id.hex()[:8]}, was made in its place: close this connection and "
                "connect again; what it knows of tables, timestamps and commits is of the former one"
            )
        self._database_id = reply.database_id or self._database_id
        self.server = reply
        if reply.frame_bytes_max:
            self._frame_bytes_max = reply.frame_bytes_max

    @staticmethod
    def _rejected(body: object) -> Misuse | Unavailable:
        if isinstance(body, Refused):
            error = body.as_error()
            return error if isinstance(error, Misuse) else Unavailable(error.message)
        return ProtocolError(f"the TSO sent {type(body).__name__} before the handshake's answer")

    def _expect(self, key: int, request: Request) -> None:
        match request:
            case Begin():
                self._begins.append(key)
            case CommitRequest(start_ts=start_ts):
                self._commits.setdefault(start_ts, deque()).append(key)
            case Fence(table_id):
                self._fences.setdefault(table_id, deque()).append(key)

    def _matched(self, body: Answer) -> int:
        """The oldest request that a Java TSO's answer fits; 0 where nobody asked (a repeated answer)."""
        match body:
            case BeginReply():
                return self._begins.popleft() if self._begins else 0
            case CommitReply(start_ts=start_ts):
                return _take(self._commits, start_ts)
            case FenceReply(table_id=table_id):
                return _take(self._fences, table_id)
        return 0


def is_answered(request: Request) -> bool:
    """Whether the TSO answers such a request at all."""
    return not isinstance(request, Complete)


def _take(waiting: dict[int, deque[int]], name: int) -> int:
    keys = waiting.get(name)
    if not keys:
        return 0
    key = keys.popleft()
    if not keys:
        del waiting[name]
    return key
