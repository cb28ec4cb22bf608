"""Requests that take store calls of their own (seals, retries, sanitizing): a few of each peer run at once.

Further requests of a peer wait here in their order, so that one peer's requests never delay the flushes of all others.
Those of a peer that left are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from pyomid.oracle.store_requests import Procedure


class PeerWork:
    """`run` drives a procedure to its next wait, as `StoreWork.run` does."""

    def __init__(self, run: Callable[[Procedure], None], *, at_once_max: int) -> None:
        self._run = run
        self._at_once_max = at_once_max
        self._running: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[Procedure]] = {}
        self._due: deque[Hashable] = deque()
        """Peers of which a request has ended: `start_due` begins their next one."""
        self._gone: set[Hashable] = set()
        """Peers that left while a request of theirs was running."""

    def __len__(self) -> int:
        """How many requests have not begun."""
        return sum(len(line) for line in self._waiting.values())

    def ask(self, peer: Hashable, procedure: Procedure) -> None:
        if self._running.get(peer, 0) >= self._at_once_max:
            self._waiting.setdefault(peer, deque()).append(procedure)
        else:
            self._start(peer, procedure)

    def start_due(self) -> None:
        """Begins the next requests. Not called from within the one that ended, or calls would nest without bound."""
        while self._due:
            peer = self._due.popleft()
            line = self._waiting.get(peer)
            if not line:
                continue
            procedure = line.popleft()
            if not line:
                del self._waiting[peer]
            self._start(peer, procedure)

    def forget(self, peer: Hashable) -> None:
        """The peer left: its requests that have not begun never do."""
        for procedure in self._waiting.pop(peer, ()):
            procedure.close()
        if peer in self._running:
            self._gone.add(peer)

    def is_awaited(self, peer: Hashable) -> bool:
        """Whether the peer still waits for its running requests: a long one asks between two steps."""
        return peer not in self._gone

    def _start(self, peer: Hashable, procedure: Procedure) -> None:
        self._running[peer] = self._running.get(peer, 0) + 1
        self._run(self._counted_steps(peer, procedure))

    def _counted_steps(self, peer: Hashable, procedure: Procedure) -> Procedure:
        yield from procedure
        self._running[peer] -= 1
        if not self._running[peer]:
            del self._running[peer]
            self._gone.discard(peer)
        self._due.append(peer)
