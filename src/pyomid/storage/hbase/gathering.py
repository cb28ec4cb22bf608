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
from pyomid.storage.hbase.failures import RemoteFailure
from pyomid.storage.hbase.requests import RowMutation, RowResult

ROWS_MAX: Final = 1000
"""Rows in one gathered call: bounded, so that other writers of the server get their turn."""

Results = Sequence[RowResult | RemoteFailure]


class _Share:
    """What one thread wants written. `woken` is held while it waits."""

    __slots__ = ("failure", "leads", "requests", "results", "woken")

    def __init__(self, requests: Sequence[RowMutation]) -> None:
        self.requests = requests
        self.results: Results | None = None
        self.failure: Exception | None = None
        self.leads = False
        self.woken = threading.Lock()


class Gatherer:
    """Of one table. `send` writes rows and returns each one's result, a failure that is that row's own included."""

    def __init__(self, send: Callable[[Sequence[RowMutation]], Results]) -> None:
        self._send = send
        self._state = threading.Lock()
        self._sending = False
        self._waiting: list[_Share] = []

    def write(self, requests: Sequence[RowMutation]) -> Results:
        """The results of these rows. An error of the sending is everybody's whose rows went with it."""
        share = _Share(requests)
        with self._state:
            if self._sending:
                share.woken.acquire()
                self._waiting.append(share)
            else:
                self._sending = share.leads = True
        if not share.leads:
            self._wait(share)
        if share.leads:
            self._lead(share)
        if share.failure is not None:
            raise share.failure
        assert share.results is not None
        return share.results

    def _wait(self, share: _Share) -> None:
        """Until the results are there, or the turn to send has come. An interrupted thread takes its rows back, or
        hands on the turn that it was given; rows that went already may be written."""
        try:
            share.woken.acquire()
        except BaseException:
            with self._state:
                if share in self._waiting:
                    self._waiting.remove(share)
                hands_on = share.leads
            if hands_on:
                self._hand_on()
            raise

    def _lead(self, own: _Share) -> None:
        shares = [own]
        failure: Exception = Unavailable("the thread that sent these rows was interrupted: they may have been written")
        results: Results | None = None
        try:
            self._take(shares)
            results = self._send([request for share in shares for request in share.requests])
        except Exception as error:
            failure = error
        finally:
            first = 0
            for share in shares:
                last = first + len(share.requests)
                if results is None:
                    share.failure = failure
                else:
                    share.results = results[first:last]
                first = last
                if share is not own:
                    share.woken.release()
            self._hand_on()

    def _take(self, shares: list[_Share]) -> None:
        """Those who wait, in their order, as far as their rows fit in one call with those of `shares`."""
        room = ROWS_MAX - len(shares[0].requests)
        with self._state:
            while self._waiting and len(self._waiting[0].requests) <= room:
                room -= len(self._waiting[0].requests)
                shares.append(self._waiting.pop(0))

    def _hand_on(self) -> None:
        with self._state:
            if not self._waiting:
                self._sending = False
                return
            following = self._waiting.pop(0)
            following.leads = True
            following.woken.release()
