"""Well-behaved peers beside an attack: every reply is checked, and none of their connections may break."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from types import TracebackType

from service_process import RawPeer, cell

from pyomid.omid.wire.codec import encode_request
from pyomid.omid.wire.messages import Begin
from pyomid.types import BeginReply, CommitReply, CommitRequest

HOT_CELLS = 8
PATIENCE_S = 90.0


class CheckedWorkload:
    """`with CheckedWorkload(service.connect) as load: …attack…`: ends by checking all that was answered.

    It speaks bytes, not by a session: a session would connect anew and hide that it was cut off.
    """

    def __init__(self, connect: Callable[[], socket.socket], *, peers: int = 2, outstanding: int = 4) -> None:
        self._connect = connect
        self._outstanding = outstanding
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []
        self._winners: list[tuple[int, int, tuple[int, ...]]] = []
        self._starts: list[int] = []
        self._aborted = 0
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(peers)]

    def __enter__(self) -> CheckedWorkload:
        for thread in self._threads:
            thread.start()
        self.wait_for_more(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait_for_more(50)
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        self._check()

    @property
    def done(self) -> int:
        with self._lock:
            return len(self._winners) + self._aborted

    def wait_for_more(self, transactions: int) -> None:
        """Until so many more were answered."""
        target, deadline_s = self.done + transactions, time.monotonic() + PATIENCE_S
        while self.done < target:
            if self._failures:
                raise AssertionError(f"the workload was disturbed: {self._failures[0]!r}") from self._failures[0]
            assert time.monotonic() < deadline_s, f"the workload stands still at {self.done} transactions"
            time.sleep(0.005)

    def _run(self, number: int) -> None:
        try:
            peer = RawPeer(self._connect())
            peer.greet()
            rng = random.Random(number)
            newest_commit = 0
            while not self._stop.is_set():
                newest_commit = self._round(peer, rng, newest_commit)
            peer.close()
        except BaseException as error:
            self._failures.append(error)

    def _round(self, peer: RawPeer, rng: random.Random, newest_commit: int) -> int:
        """A few begins, then their commits, pipelined; each of one cell of its own and perhaps a hot one."""
        tags = range(1, self._outstanding + 1)
        for tag in tags:
            peer.send(encode_request(Begin(), request_id=tag))
        starts: list[int] = []
        for tag in tags:
            answer = peer.answer()
            assert isinstance(answer.body, BeginReply), answer
            assert answer.request_id == tag, "begins are answered in order"
            assert answer.body.start_ts > newest_commit, "begun after an acknowledged commit, yet below it"
            starts.append(answer.body.start_ts)
        cells: dict[int, tuple[int, ...]] = {}
        for tag, start_ts in zip(tags, starts, strict=True):
            hot = (cell(-1 - rng.randrange(HOT_CELLS)),) if rng.random() < 0.3 else ()
            cells[tag] = (cell(start_ts), *hot)
            peer.send(encode_request(CommitRequest(start_ts, cells[tag]), request_id=tag))
        answers = {}
        for _ in tags:
            answer = peer.answer()
            assert isinstance(answer.body, CommitReply), answer
            assert answer.request_id not in answers, "answered twice"
            assert answer.body.start_ts == starts[answer.request_id - 1], "another request's answer"
            answers[answer.request_id] = answer.body
        with self._lock:
            self._starts += starts
            for tag, reply in answers.items():
                if reply.committed:
                    assert reply.commit_ts > reply.start_ts
                    self._winners.append((reply.start_ts, reply.commit_ts, cells[tag]))
                else:
                    assert len(cells[tag]) == 2, f"nobody else writes this cell: {reply}"
                    self._aborted += 1
        return max([newest_commit, *(reply.commit_ts for reply in answers.values())])

    def _check(self) -> None:
        if self._failures:
            raise AssertionError(f"the workload was disturbed: {self._failures[0]!r}") from self._failures[0]
        stamps = [*self._starts, *(commit for _, commit, _ in self._winners)]
        assert len(stamps) == len(set(stamps)), "a timestamp was handed out twice"
        by_cell: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for start_ts, commit_ts, cells in self._winners:
            for each in cells:
                by_cell[each].append((commit_ts, start_ts))
        for written in by_cell.values():
            written.sort()
            for (earlier, _), (_, start_ts) in pairwise(written):
                assert start_ts > earlier, "two winners on one cell overlap"
