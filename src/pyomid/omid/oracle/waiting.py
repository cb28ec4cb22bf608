"""Requests that wait inside the TSO: begins that wait for a window, and retries that wait for the first attempt of
their commit."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from pyomid.omid.wire.messages import Request
from pyomid.types import CommitRequest


@dataclass(slots=True)
class WaitingBegin:
    peer: Hashable
    tag: int
    not_before: int
    is_awaited: bool = True


class WaitingBegins:
    """Begins that no window can serve yet. Each peer's begins keep their order, and peers take turns.

    The cost of one begin does not grow with the number of waiting begins. A begin whose `not_before` no window has
    reached waits in a heap and delays no other. Windows ascend, so once a begin's `not_before` is reached, the begin
    stays ready.
    """

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[WaitingBegin]] = {}
        self._turns: deque[Hashable] = deque()
        """Peers with ready begins, each once."""
        self._unreached: list[tuple[int, int, WaitingBegin]] = []
        """A heap of begins, ordered by `not_before` and arrival. `_gone` counts those whose peer has disconnected."""
        self._unreached_of: dict[Hashable, dict[int, WaitingBegin]] = {}
        self._arrivals = 0
        self._gone = 0
        self._ready = 0

    def __len__(self) -> int:
        return self._ready + len(self._unreached) - self._gone

    @property
    def are_ready(self) -> bool:
        return self._ready > 0

    def add(self, begin: WaitingBegin, *, is_ready: bool) -> None:
        if is_ready:
            self._line_up(begin)
            return
        self._arrivals += 1
        self._unreached_of.setdefault(begin.peer, {})[self._arrivals] = begin
        heapq.heappush(self._unreached, (begin.not_before, self._arrivals, begin))

    def line_up(self, reaches: Callable[[int], bool]) -> None:
        """Move the begins whose `not_before` is reached into their peers' queues."""
        while self._unreached and reaches(self._unreached[0][0]):
            _, arrival, begin = heapq.heappop(self._unreached)
            if not begin.is_awaited:
                self._gone -= 1
                continue
            of_peer = self._unreached_of[begin.peer]
            del of_peer[arrival]
            if not of_peer:
                del self._unreached_of[begin.peer]
            self._line_up(begin)

    def first(self) -> WaitingBegin | None:
        """Return the next begin to answer, or None."""
        return self._lines[self._turns[0]][0] if self._turns else None

    def pop_first(self) -> None:
        """Remove the begin that `first` returned, and continue with the next peer."""
        peer = self._turns.popleft()
        line = self._lines[peer]
        line.popleft()
        self._ready -= 1
        if line:
            self._turns.append(peer)
        else:
            del self._lines[peer]

    def forget(self, peer: Hashable) -> None:
        """Drop the begins of a peer that disconnected."""
        line = self._lines.pop(peer, None)
        if line is not None:
            self._ready -= len(line)
            self._turns.remove(peer)
        for begin in self._unreached_of.pop(peer, {}).values():
            begin.is_awaited = False
            self._gone += 1
        if 2 * self._gone > len(self._unreached):
            self._unreached = [entry for entry in self._unreached if entry[2].is_awaited]
            heapq.heapify(self._unreached)
            self._gone = 0

    def _line_up(self, begin: WaitingBegin) -> None:
        line = self._lines.get(begin.peer)
        if line is None:
            line = self._lines[begin.peer] = deque()
            self._turns.append(begin.peer)
        line.append(begin)
        self._ready += 1


class FirstAttempts:
    """T7: the commits that wait for their decision, wherever they wait, and the retries that wait behind them.

    A retry ends in a seal. If a retry overtook its first attempt, the transaction would abort although nothing was
    lost.
    """

    def __init__(self) -> None:
        self._waiting: Counter[int] = Counter()
        self._behind: dict[int, list[tuple[Hashable, int, CommitRequest]]] = {}
        self._due: deque[int] = deque()
        """Starts whose first attempt waits no longer: `take_due` returns their retries."""

    def wait(self, request: Request) -> None:
        """Note that the request begins to wait."""
        if isinstance(request, CommitRequest):
            self._waiting[request.start_ts] += 1

    def end_wait(self, request: Request) -> None:
        """Note that the request no longer waits: it is handled next, or dropped."""
        if isinstance(request, CommitRequest):
            start_ts = request.start_ts
            self._waiting[start_ts] -= 1
            if not self._waiting[start_ts]:
                del self._waiting[start_ts]
                if start_ts in self._behind:
                    self._due.append(start_ts)

    def hold_back(self, peer: Hashable, tag: int, retry: CommitRequest) -> bool:
        """Keep the retry back if its first attempt waits; return whether it does."""
        if retry.start_ts not in self._waiting:
            return False
        self._behind.setdefault(retry.start_ts, []).append((peer, tag, retry))
        return True

    @property
    def are_due(self) -> bool:
        return bool(self._due)

    def take_due(self) -> Iterator[tuple[Hashable, int, CommitRequest]]:
        """Yield the retries whose first attempt no longer waits. Handle them next."""
        while self._due:
            yield from self._behind.pop(self._due.popleft(), ())

    def forget(self, peer: Hashable) -> None:
        """Drop the retries of a peer that disconnected."""
        if self._behind:
            left = {start: [each for each in behind if each[0] != peer] for start, behind in self._behind.items()}
            self._behind = {start: behind for start, behind in left.items() if behind}
