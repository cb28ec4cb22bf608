"""A whole TSO inside this process: the machine behind a lock, its store calls made by whoever asks.

For tests, for the memory store, and as the reference a service is held against. One request at a time, so nothing
is gathered into batches; every rule of the machine applies all the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock
from typing import TypeVar

from pyomid.errors import OmidError, Unavailable
from pyomid.oracle.instructions import Die, Event, Instruction, Reply, RequestCame, StoreCall, StoreDone, StoreFailed
from pyomid.oracle.machine import TsoMachine
from pyomid.oracle.settings import TsoSettings
from pyomid.oracle.takeover import take_over_steps
from pyomid.ports import Clock, Sleep
from pyomid.server.store_calls import TsoStores, perform, take_over
from pyomid.wire.messages import Answer, Complete, Refused, Request
from pyomid.wire.oracle_calls import TsoCalls

T = TypeVar("T")


class LocalTso(TsoCalls):
    """`ports.Tso` in process. Takes the epoch over when it is made; a second one on the same stores deposes it.

    Thread-safe. After `Deposed`, or another death of the machine, every call raises `Unavailable`.
    """

    def __init__(
        self,
        stores: TsoStores,
        settings: TsoSettings | None = None,
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._stores = stores
        self._clock = clock
        self._sleep = sleep
        self._lock = Lock()
        self._closed = False
        self._tag = 0
        self._died = ""
        settings = settings or TsoSettings()
        steps = take_over_steps(ceiling_step=settings.ceiling_step, ceiling_elsewhere=settings.ceiling_elsewhere)
        self.machine = TsoMachine(settings, take_over(stores, steps), now_s=clock())

    @property
    def extended(self) -> bool:
        return True

    @property
    def write_set_ids_max(self) -> int:
        return self.machine.settings.write_set_ids_max

    def complete(self, starts: Sequence[int]) -> None:
        with self._lock:
            self._step(RequestCame(None, 0, Complete(tuple(starts))))

    def tick(self) -> None:
        """Lets time work without a request: leases expire, W is published."""
        with self._lock:
            self._step()

    def close(self) -> None:
        self._closed = True

    def _ask_for(self, request: Request, kind: type[T]) -> T:
        with self._lock:
            self._tag += 1
            answer = self._step(RequestCame(None, self._tag, request)).get(self._tag)
        if isinstance(answer, Refused):
            raise answer.as_error()
        if not isinstance(answer, kind):
            raise Unavailable(f"the TSO gave no answer to {type(request).__name__}")
        return answer

    def _step(self, *events: Event) -> dict[int, Answer]:
        """Feeds the events and every store call that follows from them; the answers that came, by tag."""
        if self._closed or self._died:
            raise Unavailable(f"the TSO in this process ended: {self._died or 'closed'}")
        answers: dict[int, Answer] = {}
        pending = self._handle(*events)
        while pending:
            instruction = pending.pop(0)
            match instruction:
                case Reply(_, tag, answer):
                    answers[tag] = answer
                case StoreCall():
                    pending += self._handle(self._perform(instruction))
                case Die(reason):
                    self._died = reason
                    raise Unavailable(f"the TSO in this process died: {reason}")
        self.machine.validate()
        return answers

    def _handle(self, *events: Event) -> list[Instruction]:
        return self.machine.handle(events, self._clock(), time.time_ns() // 1_000_000)

    def _perform(self, call: StoreCall) -> Event:
        if call.delay_s:
            self._sleep(call.delay_s)
        try:
            return StoreDone(call.token, perform(self._stores, call.operation))
        except OmidError as error:
            return StoreFailed(call.token, error)
