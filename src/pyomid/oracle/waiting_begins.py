"""Begins for which there is no window yet: those of one peer in the order they came, and peers take turns.

The cost of one begin does not grow with the number that waits. A begin with a floor (`not_before`) that no window has
reached stands aside, sorted by its floor, and delays no other. Windows ascend, so once its floor is reached it only
waits for its turn.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class WaitingBegin:
    peer: Hashable
    tag: int
    not_before: int
    is_awaited: bool = True


class WaitingBegins:
    """Ready begins wait for any window; the others wait for a window above their floor."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[WaitingBegin]] = {}
        self._turns: deque[Hashable] = deque()
        """Peers that have ready begins, each once."""
        self._floored: list[tuple[int, int, WaitingBegin]] = []
        """A heap, by floor and arrival. `_gone` of them belong to peers that left."""
        self._floored_of: dict[Hashable, dict[int, WaitingBegin]] = {}
        self._arrivals = 0
        self._gone = 0
        self._ready = 0

    def __len__(self) -> int:
        return self._ready + len(self._floored) - self._gone

    @property
    def are_ready(self) -> bool:
        return self._ready > 0

    def add(self, begin: WaitingBegin, *, is_ready: bool) -> None:
        if is_ready:
            self._line_up(begin)
            return
        self._arrivals += 1
        self._floored_of.setdefault(begin.peer, {})[self._arrivals] = begin
        heapq.heappush(self._floored, (begin.not_before, self._arrivals, begin))

    def line_up(self, reaches: Callable[[int], bool]) -> None:
        """Begins whose floor was reached become ready."""
        while self._floored and reaches(self._floored[0][0]):
            _, arrival, begin = heapq.heappop(self._floored)
            if not begin.is_awaited:
                self._gone -= 1
                continue
            of_peer = self._floored_of[begin.peer]
            del of_peer[arrival]
            if not of_peer:
                del self._floored_of[begin.peer]
            self._line_up(begin)

    def first(self) -> WaitingBegin | None:
        """The begin whose turn it is."""
        return self._lines[self._turns[0]][0] if self._turns else None

    def pop_first(self) -> None:
        """`first` was answered; it is the next peer's turn."""
        peer = self._turns.popleft()
        line = self._lines[peer]
        line.popleft()
        self._ready -= 1
        if line:
            self._turns.append(peer)
        else:
            del self._lines[peer]

    def forget(self, peer: Hashable) -> None:
        """The peer left: its begins are dropped."""
        line = self._lines.pop(peer, None)
        if line is not None:
            self._ready -= len(line)
            self._turns.remove(peer)
        for begin in self._floored_of.pop(peer, {}).values():
            begin.is_awaited = False
            self._gone += 1
        if 2 * self._gone > len(self._floored):
            self._floored = [entry for entry in self._floored if entry[2].is_awaited]
            heapq.heapify(self._floored)
            self._gone = 0

    def _line_up(self, begin: WaitingBegin) -> None:
        line = self._lines.get(begin.peer)
        if line is None:
            line = self._lines[begin.peer] = deque()
            self._turns.append(begin.peer)
        line.append(begin)
        self._ready += 1
