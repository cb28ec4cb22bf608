"""A whole TSO inside this process: the machine under a lock. The calling thread performs the machine's store calls.

It serves the memory store and tests, and is the reference implementation of the TSO's service. It handles one request
at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from threading import RLock, get_ident
from typing import Final, TypeVar

from pyomid import system
from pyomid.errors import OmidError, OutcomeUnknown, Unavailable
from pyomid.omid.oracle.instructions import (
    Die,
    Event,
    Instruction,
    Reply,
    RequestCame,
    StoreCall,
    StoreDone,
    StoreFailed,
)
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.tso.store_calls import TsoStores, perform, take_over, wait_for_clock
from pyomid.omid.wire.client_protocol import OpenStarts, TsoCalls
from pyomid.omid.wire.messages import Answer, Refused, Request
from pyomid.ports import Clock
from pyomid.types import BeginReply, CommitRequest

T = TypeVar("T")

CEILING_STEP: Final = 50_000_000
"""A durable ceiling costs nothing in memory, so it moves in small steps. The next TSO in this process waits for at most
this many nanoseconds."""


class LocalTso(TsoCalls):
    """An implementation of `ports.Tso` in this process. Its constructor takes over; a second one on the same stores
    deposes it.

    Thread-safe. After the machine has died (`Deposed` or another error), every call raises `Unavailable`, and a commit
    in flight raises `OutcomeUnknown`. After any other exception during a call (Ctrl-C, lack of memory) the machine's
    state is unknown. Then the next call takes over anew, as a new process would (C9).
    """

    def __init__(
        self,
        stores: TsoStores,
        settings: TsoSettings | None = None,
        *,
        clock: Clock = time.monotonic,
        locks: Sequence[system.OwnLock] = (),
    ) -> None:
        """`locks` are the locks of the stores. A call that interrupts the holder of one is refused, because it would
        fail in the machine and end it."""
        self._stores, self._locks = stores, locks
        self._clock = clock
        self._lock = system.OwnLock()
        self._closed = False
        self._tag = 0
        self._died = ""
        self._settings = settings or TsoSettings()
        if settings is None or settings.ceiling_step == TsoSettings().ceiling_step:
            self._settings = replace(
                self._settings, ceiling_step=CEILING_STEP, ceiling_renew_remaining=CEILING_STEP // 2
            )
        self._is_in_step = False
        self._open_starts = OpenStarts(client=b"here", slack_s=0.0, holder="this process", clock=clock)
        self.machine = self._new_machine()

    def _new_machine(self) -> TsoMachine:
        taken_over = take_over(self._stores, self._settings, wall_ns=time.time_ns())
        wait_for_clock(taken_over.epoch)
        machine = TsoMachine(self._settings, taken_over, now_s=self._clock())
        self._open_starts.connected(self._settings.max_transaction_age_s, machine.epoch)
        return machine

    @property
    def extended(self) -> bool:
        return True

    @property
    def write_set_ids_max(self) -> int:
        return self.machine.settings.write_set_ids_max

    def begin(self, *, not_before: int = 0) -> BeginReply:
        held = self._open_starts.expect()
        try:
            reply = super().begin(not_before=not_before)
            self._open_starts.received(held, reply.start_ts)
            return replace(reply, hold=held)
        except BaseException:
            held.end()
            raise

    def tick(self) -> None:
        """Do the periodic work: expire leases and publish W."""
        with self._alone():
            self._step()
            self._check_alive()

    def close(self) -> None:
        self._closed = True

    def _ask_for(self, request: Request, kind: type[T]) -> T:
        with self._alone():
            self._tag += 1
            answer = self._step(RequestCame(None, self._tag, request)).get(self._tag)
        if isinstance(answer, Refused):
            raise answer.as_error()
        if isinstance(answer, kind):
            return answer
        kind_of_request = type(request).__name__
        why = f"the TSO in this process returned no reply to {kind_of_request}: {self._died or 'it still runs (a bug)'}"
        if isinstance(request, CommitRequest):
            raise OutcomeUnknown(why, start_ts=request.start_ts)
        raise Unavailable(why)

    def _alone(self) -> RLock:
        """Return a lock for a `with` statement that gives exclusive use of the machine. Raises `Misuse` in a call that
        interrupts another one of the same thread."""
        if get_ident() in system.inside:
            system.refuse_nested()
        for lock in self._locks:
            lock.refuse_nested()
        return self._lock.held()

    def _step(self, *events: Event) -> dict[int, Answer]:
        """Feed the events to the machine, and the results of the store calls that follow. Return the machine's replies
        by tag, even if it died afterwards."""
        self._check_alive()
        if self._is_in_step:
            self.machine = self._new_machine()
        self._is_in_step = True
        if not self._open_starts.is_reported:
            events = (RequestCame(None, 0, self._open_starts.next_report()), *events)
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
        if not self._died:
            self.machine.validate()
        self._is_in_step = False
        return answers

    def _check_alive(self) -> None:
        if self._closed or self._died:
            raise Unavailable(f"the TSO in this process has ended: {self._died or 'it was closed'}")

    def _handle(self, *events: Event) -> list[Instruction]:
        return self.machine.handle(events, self._clock(), time.time_ns())

    def _perform(self, call: StoreCall) -> Event:
        if call.delay_s:
            time.sleep(call.delay_s)
        try:
            return StoreDone(call.token, perform(self._stores, call.operation))
        except OmidError as error:
            return StoreFailed(call.token, error)
