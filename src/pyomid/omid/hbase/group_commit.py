"""Group commit: small writes of many threads share a call. Writes that arrive during one call are sent by the next one.

    thread 1   ── write ──────────▶ (alone, at once)
    thread 2        wait ···········── 2, 3, 4 in one call ──▶
    thread 3            wait ·······························▶
    thread 4                wait ···························▶

The cost for a single writer is one lock. There is no sender thread: a thread that finds no leader becomes the leader
and sends its rows. Then it makes the first waiting thread the leader, which sends the rows of all waiting threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from pyomid import system
from pyomid.errors import Unavailable
from pyomid.omid.hbase.rpc.failures import RemoteFailure
from pyomid.omid.hbase.rpc.requests import RowMutation, RowResult

ROWS_MAX: Final = 1000
"""The maximum number of rows in one shared call, so that the call does not delay the server's other clients for
long."""

Results = Sequence[RowResult | RemoteFailure]


class _Share:
    """The rows that one thread writes. `woken` is locked while the thread waits. `taken` are the shares of other
    threads that this thread, as the leader, sends with its own."""

    __slots__ = ("failure", "requests", "results", "taken", "woken")

    def __init__(self, requests: Sequence[RowMutation]) -> None:
        self.requests = requests
        self.results: Results | None = None
        self.failure: Exception | None = None
        self.taken: list[_Share] = []
        self.woken = threading.Lock()

    @property
    def is_done(self) -> bool:
        return self.results is not None or self.failure is not None

    def wake(self) -> None:
        """Wake the share's thread. A needless wake is harmless: the thread checks the state of its share again."""
        if self.woken.locked():
            self.woken.release()


class GroupCommit:
    """Group commit for one table. `send` writes rows and returns the result or failure of each row.

    An interrupt may come at any line. An interrupted thread withdraws its rows. If it is the leader, it also fails the
    shares that it took and passes the leadership on. Each of these steps is idempotent.
    """

    def __init__(self, send: Callable[[Sequence[RowMutation]], Results]) -> None:
        self._send = send
        self._state = threading.Lock()
        self._leader: _Share | None = None
        self._waiting: list[_Share] = []

    def write(self, requests: Sequence[RowMutation]) -> Results:
        """Write rows and return their results. If the call fails, its error is raised in every thread whose rows it
        carried."""
        if threading.get_ident() in system.inside:
            system.refuse_nested()
        share = _Share(requests)
        try:
            if self._wait_to_lead(share):
                self._lead(share)
        except BaseException:
            self._withdraw(share)
            raise
        if share.failure is not None:
            raise share.failure
        assert share.results is not None
        return share.results

    def _wait_to_lead(self, share: _Share) -> bool:
        """Wait. Returns True once this thread is the leader, False once another thread has sent its rows."""
        with self._state:
            if self._leader is None:
                self._leader = share
                return True
            share.woken.acquire()
            self._waiting.append(share)
        while True:
            share.woken.acquire()
            with self._state:
                if share.is_done:
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
        self._finish(own, results, failure)

    def _withdraw(self, share: _Share) -> None:
        with self._state:
            if share in self._waiting:
                self._waiting.remove(share)
            leads = self._leader is share
        if leads:
            self._finish(
                share,
                None,
                Unavailable("the thread that sent these rows was interrupted, so some of them may have been written"),
            )

    def _finish(self, own: _Share, results: Results | None, failure: Exception | None) -> None:
        """End the leader's own share and those that it took, and make the next waiting thread the leader."""
        first = 0
        for share in (own, *own.taken):
            last = first + len(share.requests)
            if not share.is_done:
                share.failure = failure
                share.results = None if results is None else results[first:last]
            first = last
            if share is not own:
                share.wake()
        with self._state:
            self._waiting = [share for share in self._waiting if not share.is_done]
            if self._waiting:
                self._waiting[0].wake()
            self._leader = self._waiting[0] if self._waiting else None

    def _take(self, own: _Share) -> None:
        """Take waiting shares, in order, as many as fit into one call with the leader's own rows."""
        room = ROWS_MAX - len(own.requests)
        with self._state:
            while self._waiting and len(self._waiting[0].requests) <= room:
                room -= len(self._waiting[0].requests)
                own.taken.append(self._waiting[0])
                self._waiting.pop(0)
