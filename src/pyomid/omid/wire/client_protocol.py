"""The client's end of the wire protocol, without I/O.

    ClientProtocol  encodes requests to bytes, and decodes received bytes to answers
    TsoCalls        makes requests of the calls of `ports.Tso`, for a TSO in another process or in this one
    OpenStarts      tracks a session's open starts and composes its reports to the TSO (T16; protocol.md, Open starts;
                    the TSO's side is `omid.oracle.open_starts`)

pyomid's TSO echoes the request id. A Java TSO does not, so its answers are matched by order (begins), start (commits)
and table (fences).
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar
from weakref import ReferenceType

from pyomid.errors import Misuse, Unavailable
from pyomid.omid.wire.codec import (
    EXTENSIONS_VERSION,
    Handshake,
    HandshakeReply,
    decode_answer,
    encode_handshake,
    encode_request,
)
from pyomid.omid.wire.frames import FRAME_BYTES_MAX, FrameCutter, ProtocolError
from pyomid.omid.wire.messages import (
    AdvanceHorizon,
    Answer,
    AskStatus,
    Begin,
    Done,
    EndLease,
    Fence,
    FenceReply,
    GrantLease,
    HorizonReply,
    LeaseReply,
    Refused,
    RenewLease,
    ReportIds,
    ReportOpenStarts,
    Request,
    Seal,
    SealReply,
)
from pyomid.ports import Clock, Tso
from pyomid.types import BeginReply, CommitReply, CommitRequest, OpenStart, SealOutcome, Status


class ClientProtocol:
    """The protocol state of one connection. Not thread-safe: the owner calls `ask`, and also `feed`, one call at a
    time."""

    def __init__(self, *, token: bytes = b"", commit_retry_s: float = 0.0, database_id: bytes = b"") -> None:
        """`database_id` is the id of the database that this client knows; it is empty if no TSO has sent one."""
        self._handshake = Handshake(EXTENSIONS_VERSION, token, commit_retry_s)
        self._database_id = database_id
        self._cutter = FrameCutter(FRAME_BYTES_MAX)
        self._next_key = 1
        self._frame_bytes_max = FRAME_BYTES_MAX
        self._begins: deque[int] = deque()
        self._commits: dict[int, deque[int]] = {}
        self._fences: dict[int, deque[int]] = {}
        self.server: HandshakeReply | None = None
        self.extended = False
        """Whether the TSO supports pyomid's extensions."""

    @property
    def database_id(self) -> bytes:
        """The database's id, to pass to the next connection."""
        return self._database_id

    def handshake(self) -> bytes:
        """Return the bytes to send first. Send nothing else before `feed` has received the TSO's handshake."""
        return encode_handshake(self._handshake)

    def ask(self, request: Request) -> tuple[int, bytes]:
        """Return the key that the answer will have, and the bytes to send. Raises `Misuse` if this TSO does not support
        the request."""
        key = self._next_key
        frames = encode_request(request, request_id=key, extended=self.extended, frame_bytes_max=self._frame_bytes_max)
        self._next_key += 1
        if not self.extended:
            self._expect(key, request)
        return key, frames

    def feed(self, chunk: bytes) -> Iterator[tuple[int, Answer]]:
        """Yield every answer that `chunk` completes, with its key. If it raises `ProtocolError`, close the
        connection."""
        for payload in self._cutter.feed(chunk):
            outgoing = decode_answer(payload)
            body = outgoing.body
            if isinstance(body, HandshakeReply):
                self._take_handshake(body)
            elif self.server is None or (isinstance(body, Refused) and not outgoing.request_id):
                raise self._rejected(body)
            else:
                key = outgoing.request_id or self._matched(body)
                if key:
                    yield key, body

    def _take_handshake(self, reply: HandshakeReply) -> None:
        if not reply.compatible:
            raise ProtocolError(
                "the TSO rejected this client as incompatible: it speaks another version of Omid's protocol; pyomid "
                "works with its own TSO and with that of Apache Omid 1.1"
            )
        if self._database_id and reply.database_id not in (b"", self._database_id):
            raise Misuse(
                f"the TSO serves database {reply.database_id.hex()[:8]}, but this connection was opened to database "
                f"{self._database_id.hex()[:8]}, which was dropped and created again: close this connection and "
                "connect again, because its cached tables, timestamps and commits belong to the former database. If no "
                "database was dropped, two HBase clusters share a ZooKeeper ensemble, and this TSO serves the other "
                "cluster: give each cluster an ensemble of its own"
            )
        self._database_id = reply.database_id or self._database_id
        self.server, self.extended = reply, reply.extensions == EXTENSIONS_VERSION
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
        """Return the key of the oldest request that a Java TSO's answer matches; 0 if there is none, because the TSO
        answered twice."""
        match body:
            case BeginReply():
                return self._begins.popleft() if self._begins else 0
            case CommitReply(start_ts=start_ts):
                return _take(self._commits, start_ts)
            case FenceReply(table_id=table_id):
                return _take(self._fences, table_id)
        return 0


def _take(waiting: dict[int, deque[int]], name: int) -> int:
    keys = waiting.get(name)
    if not keys:
        return 0
    key = keys.popleft()
    if not keys:
        del waiting[name]
    return key


T = TypeVar("T")


class TsoCalls(Tso):
    """The calls of `ports.Tso`, each of which sends one request and returns its answer."""

    @abstractmethod
    def _ask_for(self, request: Request, kind: type[T]) -> T:
        """Send the request and return its answer, which must be of this kind. If the TSO refuses, raise its error."""

    @property
    def holder(self) -> str:
        """This client's name as the holder of leases, as text for people."""
        return ""

    def begin(self, *, not_before: int = 0) -> BeginReply:
        return self._ask_for(Begin(not_before), BeginReply)

    def commit(self, request: CommitRequest) -> CommitReply:
        return self._ask_for(request, CommitReply)

    def fence(self, table_id: int) -> int:
        return self._ask_for(Fence(table_id), FenceReply).fence_ts

    def grant_lease(self, start_ts: int, term_s: float | None = None) -> float:
        return self._ask_for(GrantLease(start_ts, term_s or 0.0, self.holder), LeaseReply).term_s

    def share_lease(self, start_ts: int, term_s: float | None = None) -> tuple[int, float]:
        reply = self._ask_for(GrantLease(start_ts, term_s or 0.0, self.holder, shared=True), LeaseReply)
        return reply.start_ts, reply.term_s

    def renew_lease(self, start_ts: int) -> float:
        return self._ask_for(RenewLease(start_ts), LeaseReply).term_s

    def end_lease(self, start_ts: int, *, shared: bool = False) -> None:
        self._ask_for(EndLease(start_ts, shared), Done)

    def report_ids(self, start_ts: int, table_id: int, branch: int, part: int, ids: bytes) -> None:
        self._ask_for(ReportIds(start_ts, table_id, branch, part, ids), Done)

    def seal(self, starts: Sequence[int]) -> list[SealOutcome]:
        return list(self._ask_for(Seal(tuple(starts)), SealReply).outcomes) if starts else []

    def advance_horizon(self, horizon: int) -> int:
        return self._ask_for(AdvanceHorizon(horizon), HorizonReply).deleted

    def status(self) -> Status:
        return self._ask_for(AskStatus(), Status)


REPORT_S: Final = 2.0
"""A session reports its open starts at most this often, and only if something changed."""


class OpenStarts:
    """The open starts of one session. `client` is its random id; a forked child has another. A begin may be in flight
    for `slack_s`.

        begin requested ─► `expect` ─► answer ─► `received` ─► the transaction ends ─► `OpenStart.end`
                              └────────────────── counts as open ──────────────────────────┘

    The `OpenStart` is created before the request is sent, and the reply refers to it. The start counts as open until
    `end` is called, the `OpenStart` is garbage, or the TSO's maximum age is over. No method blocks or locks, because a
    start may end in any thread and at any point.
    """

    def __init__(self, *, client: bytes, slack_s: float, holder: str, clock: Clock) -> None:
        self.age_s = 0.0
        """How long the TSO keeps an open start. 0 means that the TSO takes no reports."""
        self._slack_s = slack_s
        self._holder = holder
        self._clock = clock
        self._client = client
        self._connections = 0
        self._newest = 0
        self._held: dict[int, ReferenceType[OpenStart]] = {}
        """number → open start, in the order of the begins."""
        self._numbers = itertools.count(1)
        self._begins = 0
        self._reported = (-1, 0)
        """(oldest start, number of begins) as of the last report."""

    # ── open starts ──────────────────────────────────────────────────────────────────────────────────────────────

    def expect(self) -> OpenStart:
        """Count a begin that is about to be requested. Pass the result to `received`, or end it if the begin fails."""
        until_s = self._clock() + self.age_s + self._slack_s
        self._begins += 1
        return OpenStart(self._held, next(self._numbers), self._newest + 1, until_s)

    def received(self, held: OpenStart, start_ts: int) -> None:
        """Note the start timestamp that answered a begin. The reply must carry `held`."""
        if self.age_s:
            held.until_s = self._clock() + self.age_s
            held.at_least = start_ts
        else:
            held.end()
        self._newest = max(self._newest, start_ts)

    # ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────

    def connected(self, age_s: float, epoch: int) -> None:
        """Note a new connection, whose first request must be a report. `epoch` is the TSO's; all its starts are above
        it."""
        self._connections += 1
        self.age_s = age_s
        self._newest = max(self._newest, epoch)
        self._reported = (-1, 0)

    @property
    def is_reported(self) -> bool:
        """Whether the last report is up to date, or the TSO takes no reports."""
        return not self.age_s or self._reported == (self._oldest(), self._begins)

    @property
    def holds_any(self) -> bool:
        return bool(self._held)

    def next_report(self) -> ReportOpenStarts:
        """Return the report to send now. No begin may be sent between this call and the sending of the report
        (`told_in_order` of the model)."""
        begins, oldest = self._begins, self._oldest()
        is_first = self._reported[0] < 0
        self._reported = (oldest, begins)
        return ReportOpenStarts(self._client, self._connections, oldest, self._holder if is_first else "")

    def _oldest(self) -> int:
        """Return a lower bound of all starts that are open or in flight, or 0 if there are none."""
        now_s = self._clock()
        oldest = 0
        for number, reference in self._held.copy().items():
            held = reference()
            if held is None or held.until_s <= now_s:
                self._held.pop(number, None)
            else:
                oldest = min(oldest or held.at_least, held.at_least)
        return oldest
