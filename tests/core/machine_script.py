"""A hand on the machine: a test performs its store calls one by one, when and in the order it likes.

tso = Script()
s = tso.begin()
tso.ask(CommitRequest(s, (1,)))            → a `Waiting` whose `answer` is None until it was answered
tso.finish(Flush)                           performs the oldest such call on memory stores
tso.settle()                                performs everything
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from pyomid.errors import OmidError
from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState
from pyomid.omid.oracle.instructions import (
    Die,
    Event,
    Reply,
    RequestCame,
    StoreCall,
    StoreDone,
    StoreFailed,
    StoreOperation,
)
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.tso.store_calls import TsoStores, perform, take_over
from pyomid.omid.wire.messages import Answer, Begin, Refused, Request
from pyomid.types import AbortReason, BeginReply, CommitReply, CommitRequest, LeaderRecord

T = TypeVar("T")


@dataclass
class Waiting:
    answer: Answer | None = None

    @property
    def start_ts(self) -> int:
        assert isinstance(self.answer, BeginReply), self.answer
        return self.answer.start_ts

    def refusal(self) -> OmidError:
        assert isinstance(self.answer, Refused), self.answer
        return self.answer.as_error()


def committed(answer: object) -> int:
    assert isinstance(answer, CommitReply), answer
    assert answer.committed, answer
    return answer.commit_ts


def reason(answer: object) -> AbortReason | None:
    assert isinstance(answer, CommitReply), answer
    assert not answer.committed, answer
    return answer.reason


def memory_stores(state: LeaderRecord | None = None) -> TsoStores:
    return TsoStores(MemoryCommitTable(), MemoryLeaderState(state), MemoryCatalog())


SMALL = {"window_starts": 4, "conflict_map_entries": 1 << 10, "flushes_in_flight_max": 2}


class Script:
    """One TSO and the stores behind it; another `Script` on the same stores is the next TSO."""

    def __init__(self, stores: TsoStores | None = None, *, wall_ns: int = 0, **settings: Any) -> None:
        self.stores = stores or memory_stores()
        self.settings = TsoSettings(**{**SMALL, **settings})
        self.now_s = 1000.0
        self.wall_ns = wall_ns
        """Moves with `now_s`; 0: not known."""
        taken_over = take_over(self.stores, self.settings, wall_ns=wall_ns)
        self.machine = TsoMachine(self.settings, taken_over, now_s=self.now_s)
        self.calls: list[StoreCall] = []
        self.died = ""
        self._waiting: list[Waiting] = []
        self.tick()
        self.settle()

    def ask(self, request: Request, peer: str = "peer") -> Waiting:
        self._waiting.append(Waiting())
        self._feed(RequestCame(peer, len(self._waiting) - 1, request))
        return self._waiting[-1]

    def ask_settled(self, request: Request) -> Waiting:
        waiting = self.ask(request)
        self.settle()
        return waiting

    def told(self, kind: type[T], request: Request) -> T:
        answer = self.ask_settled(request).answer
        assert isinstance(answer, kind), answer
        return answer

    def begin(self, not_before: int = 0) -> int:
        return self.ask(Begin(not_before)).start_ts

    def commit(self, start_ts: int, *cells: int, **more: Any) -> Answer:
        """A commit with everything it needs performed."""
        waiting = self.ask(CommitRequest(start_ts, cells, **more))
        self.settle()
        assert waiting.answer is not None
        return waiting.answer

    def tick(self, seconds: float = 0.0) -> None:
        """Time goes by in steps that are no stall."""
        step = self.settings.stall_s_max / 2
        while seconds > step:
            self._pass(step)
            seconds -= step
            self._feed()
        self._pass(seconds)
        self._feed()

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds
        if self.wall_ns:
            self.wall_ns += int(seconds * 1e9)

    def pass_time(self, seconds: float, times: int = 1) -> None:
        """With what the stores are asked meanwhile."""
        for _ in range(times):
            self.tick(seconds)
            self.settle()

    def stall(self, seconds: float) -> None:
        self._pass(seconds)
        self._feed()

    def pending(self, kind: type[StoreOperation]) -> list[StoreCall]:
        return [call for call in self.calls if isinstance(call.operation, kind)]

    def finish(self, kind: type[StoreOperation], index: int = 0) -> None:
        """Performs the index-th call of that kind and feeds its result."""
        self.done(self.perform(kind, index))

    def perform(self, kind: type[StoreOperation], index: int = 0) -> Event:
        """Takes effect in the stores now; the machine is not told yet."""
        call = self.pending(kind)[index]
        self.calls.remove(call)
        try:
            return StoreDone(call.token, perform(self.stores, call.operation))
        except OmidError as error:
            return StoreFailed(call.token, error)

    def fail(self, kind: type[StoreOperation], error: OmidError) -> None:
        call = self.pending(kind)[0]
        self.calls.remove(call)
        self._feed(StoreFailed(call.token, error))

    def done(self, event: Event) -> None:
        self._feed(event)

    def settle(self) -> None:
        while self.calls and not self.died:
            self.done(self.perform(type(self.calls[0].operation)))

    def _feed(self, *events: Event) -> None:
        for instruction in self.machine.handle(events, self.now_s, self.wall_ns):
            match instruction:
                case Reply(_, tag, answer):
                    assert self._waiting[tag].answer is None, "answered twice"
                    self._waiting[tag].answer = answer
                case StoreCall():
                    self.calls.append(instruction)
                case Die(reason):
                    self.died = reason
        if not self.died:
            self.machine.validate()
