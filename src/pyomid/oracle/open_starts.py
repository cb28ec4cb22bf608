"""Open starts: what clients may still work with holds LWM back (T16; protocol.md, Open starts).

    a start is handed out over a connection ──► it holds LWM, and all above it
    the client tells its oldest open start  ──► that one holds LWM; none: nothing of this connection does
    the connection ends                     ──► what held LWM goes on, until its client tells over a later connection
    the client's process has ended          ──► nothing of that client holds LWM

A peer that never tells (a Java client) holds LWM by what was handed out to it first. Age passes all (T15): when the
newest start that a connection may hold is old, the connection holds nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from pyomid.wire.messages import TellOpen

ENDED_MAX: Final = 1000
"""Ended connections that are remembered one by one; beyond it the two oldest become one that holds as much."""

_CLIENT_BYTES_MAX: Final = 32
_HOLDER_CHARS_MAX: Final = 120


@dataclass(slots=True)
class Held:
    """What a connection's client may hold open lies from `floor` to `newest`; 0: nothing."""

    floor: int = 0
    newest: int = 0
    client: bytes = b""
    """Random, the client's; empty until it told."""
    connection: int = 0
    """Which of its client's connections this is: they ascend."""
    holder: str = ""
    """The client, as text for people."""
    ended: Hashable = None
    """The connection, once it has ended."""


def _nothing() -> None:
    pass


class OpenStarts:
    """`gather`: fetches what a driver knows of starts that were handed out since (by `handed_out`)."""

    def __init__(self) -> None:
        self.gather: Callable[[], None] = _nothing
        self._peers: dict[Hashable, Held] = {}
        self._ended: list[Held] = []
        self._of_client: dict[bytes, dict[Hashable, Held]] = {}

    def handed_out(self, peer: Hashable, above: int, newest: int) -> None:
        """Starts above `above` and up to `newest` are on their way to the peer. The calls may come in any order: those
        of a driver that notes starts by itself come when it is asked."""
        held = self._peers.get(peer)
        if held is None:
            held = self._peers[peer] = Held()
        held.floor = min(held.floor, above + 1) if held.floor else above + 1
        held.newest = max(held.newest, newest)

    def told(self, peer: Hashable, told: TellOpen, newest_start: int) -> None:
        """What the client holds lies at or above `told.oldest`, over whichever connection it came; 0: nothing. All that
        it received later comes over this connection."""
        self.gather()
        client = told.client[:_CLIENT_BYTES_MAX]
        held = self._peers.setdefault(peer, Held())
        self._name(peer, held, client, told.connection)
        held.holder = "".join(filter(str.isprintable, told.holder[:_HOLDER_CHARS_MAX])) or held.holder
        held.floor = max(0, told.oldest)
        if held.floor:
            held.newest = newest_start
        self._ended = [
            each for each in self._ended if not client or each.client != client or each.connection >= told.connection
        ]

    def _name(self, peer: Hashable, held: Held, client: bytes, connection: int) -> None:
        if held.client != client:
            self._unname(peer, held)
        held.client, held.connection = client, connection
        if client:
            self._of_client.setdefault(client, {})[peer] = held

    def _unname(self, peer: Hashable, held: Held) -> None:
        same = self._of_client.get(held.client)
        if same is not None:
            same.pop(peer, None)
            if not same:
                del self._of_client[held.client]

    def gone(self, peer: Hashable) -> None:
        """Its connection ended. What its client received may be in use all the same."""
        self.gather()
        held = self._peers.pop(peer, None)
        if held is None:
            return
        self._unname(peer, held)
        if held.floor and not self._told_later(held):
            held.ended = peer
            self._ended.append(held)
            if len(self._ended) > ENDED_MAX:
                first, second, *rest = self._ended
                merged = Held(min(first.floor, second.floor), max(first.newest, second.newest), holder="ended clients")
                self._ended = [merged, *rest]

    def waits_for(self, peer: Hashable) -> bool:
        """Whether what this connection's client held when it ended holds LWM, and who it is, is known."""
        return any(held.ended == peer and held.client for held in self._ended)

    def process_ended(self, peer: Hashable) -> None:
        """The connection ended before, and so did the process that had it: nothing that its client received is in use.
        A client that never told counts by age: who it is, and in which process, is not known."""
        clients = {held.client for held in self._ended if held.ended == peer} - {b""}
        self._ended = [held for held in self._ended if held.client not in clients]

    def _told_later(self, held: Held) -> bool:
        return any(each.connection > held.connection for each in self._of_client.get(held.client, {}).values())

    def held(self) -> dict[Hashable, tuple[int, int]]:
        """(floor, newest) of each connection over which something may be open."""
        self.gather()
        return {peer: (held.floor, held.newest) for peer, held in self._peers.items() if held.floor}

    def lowest(self, old: int) -> Held | None:
        """What holds LWM back most: nothing that is open lies below its floor. Starts up to `old` hold nothing."""
        self.gather()
        self._ended = [held for held in self._ended if held.newest > old]
        lowest: Held | None = None
        for held in (*self._peers.values(), *self._ended):
            if held.floor and held.newest > old and (lowest is None or held.floor < lowest.floor):
                lowest = held
        return lowest
