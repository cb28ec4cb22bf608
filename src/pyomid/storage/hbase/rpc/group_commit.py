"""Small writes of many threads in one call: what comes while a call is on its way goes together with the next.

    thread 1   ── write ──────────▶ (alone: at once)
    thread 2        wait ···········── 2, 3, 4 in one call ──▶
    thread 3            wait ·······························▶
    thread 4                wait ···························▶

A thread alone pays nothing but a lock. Nobody has a thread of its own: whoever finds nobody sending sends, then hands
on to the first of those who came meanwhile, who sends for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from pyomid.errors import Unavailable
from pyomid.storage.hbase.rpc.failures import RemoteFailure
from pyomid.storage.hbase.rpc.requests import RowMutation, RowResult

ROWS_MAX: Final = 1000
"""Rows in one gathered call: bounded, so that other writers of the server get their turn."""

Results = Sequence[RowResult | RemoteFailure]


class _Share:
    """What one thread wants written. `woken` is held while it waits; `taken`: those whose rows go with its own."""

    __slots__ = ("failure", "requests", "results", "taken", "woken")

    def __init__(self, requests: Sequence[RowMutation]) -> None:
        self.requests = requests
        self.results: Results | None = None
        self.failure: Exception | None = None
        self.taken: list[_Share] = []
        self.woken = threading.Lock()

    @property
    def is_settled(self) -> bool:
        return self.results is not None or self.failure is not None

    def wake(self) -> None:
        """Once too often does no harm: it looks again what it was woken for."""
        if self.woken.locked():
            self.woken.release()


class Gatherer:
    """Of one table. `send` writes rows and returns each one's result, a failure that is that row's own included.

    An interrupt may come at any line. Whoever is interrupted takes its rows back or, where it leads, settles those it
    took and hands on the turn; each step of that may be done twice.
    """

    def __init__(self, send: Callable[[Sequence[RowMutation]], Results]) -> None:
        self._send = send
        self._state = threading.Lock()
        self._leader: _Share | None = None
        self._waiting: list[_Share] = []

    def write(self, requests: Sequence[RowMutation]) -> Results:
        """The results of these rows. An error of the sending is everybody's whose rows went with it."""
        share = _Share(requests)
        try:
            if self._comes_to_lead(share):
                self._lead(share)
        except BaseException:
            self._leave(share)
            raise
        if share.failure is not None:
            raise share.failure
        assert share.results is not None
        return share.results

    def _comes_to_lead(self, share: _Share) -> bool:
        """False when its results are there."""
        with self._state:
            if self._leader is None:
                self._leader = share
                return True
            share.woken.acquire()
            self._waiting.append(share)
        while True:
            share.woken.acquire()
            with self._state:
                if share.is_settled:
                    return False
                if self._leader is share:
                    self._waiting.remove(share)
                    return True

    def _lead(self, own: _Share) -> None:
        self._take(own)
        failure: Exception | None = None
        results: Results | None = None
        try:
            results = self._send([request for share in (own, *own.taken) for request in share.requests])
        except Exception as error:
            failure = error
        self._end(own, results, failure)

    def _leave(self, share: _Share) -> None:
        with self._state:
            if share in self._waiting:
                self._waiting.remove(share)
            leads = self._leader is share
        if leads:
            self._end(share, None, Unavailable("the thread that sent these rows was interrupted: they may be written"))

    def _end(self, own: _Share, results: Results | None, failure: Exception | None) -> None:
        first = 0
        for share in (own, *own.taken):
            last = first + len(share.requests)
            if not share.is_settled:
                share.failure = failure
                share.results = None if results is None else results[first:last]
            first = last
            if share is not own:
                share.wake()
        with self._state:
            self._waiting = [share for share in self._waiting if not share.is_settled]
            if self._waiting:
                self._waiting[0].wake()
            self._leader = self._waiting[0] if self._waiting else None

    def _take(self, own: _Share) -> None:
        """Those who wait, in their order, as far as their rows fit in one call with its own."""
        room = ROWS_MAX - len(own.requests)
        with self._state:
            while self._waiting and len(self._waiting[0].requests) <= room:
                room -= len(self._waiting[0].requests)
                own.taken.append(self._waiting[0])
                self._waiting.pop(0)
