"""Track open starts (T16): the oldest start that a client may still use holds back E, and with it W.

    a start is handed out over a connection    ──► E stays below it
    the client reports its oldest open start   ──► E stays below that start; if none is open, the connection holds
                                                   nothing
    the connection ends                        ──► it still holds E, until its client reports over a later connection

A peer that never reports (a Java client) holds E back by the first start that it received. Age overrides all (T15):
when the newest start that a connection may hold is too old, the connection holds nothing. The client's side of this
is in `omid.wire.client_protocol`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from pyomid.omid.wire.messages import ReportOpenStarts

ENDED_MAX: Final = 1000
"""How many ended connections are remembered one by one. Beyond this number the two oldest are merged, with the lower
bound of the two."""

_CLIENT_BYTES_MAX: Final = 32
_HOLDER_CHARS_MAX: Final = 120


@dataclass(slots=True)
class Held:
    """The starts that the client of a connection may hold open: from `bound` to `newest`, or none if `bound` is 0."""

    bound: int = 0
    newest: int = 0
    client: bytes = b""
    """The client's random name; empty until its first report."""
    connection: int = 0
    """The number of the connection. Each client numbers its connections in ascending order."""
    holder: str = ""
    """The client's description, as text for people."""


class OpenStarts:
    """The open starts of all connections, ended ones included."""

    def __init__(self) -> None:
        self._peers: dict[Hashable, Held] = {}
        self._ended: list[Held] = []
        self._of_client: dict[bytes, dict[Hashable, Held]] = {}

    def handed_out(self, peer: Hashable, above: int, newest: int) -> None:
        """Note that starts above `above`, up to `newest`, are being sent to the peer. Calls may come in any order."""
        held = self._peers.get(peer)
        if held is None:
            held = self._peers[peer] = Held()
        held.bound = min(held.bound, above + 1) if held.bound else above + 1
        held.newest = max(held.newest, newest)

    def report(self, peer: Hashable, report: ReportOpenStarts, newest_start: int) -> None:
        """Take a client's report. All open starts of the client are at or above `report.oldest`, whichever connection
        they came over; 0 means that the client has none. Any start that the client received after it sent the report
        came over this connection."""
        client = report.client[:_CLIENT_BYTES_MAX]
        held = self._peers.setdefault(peer, Held())
        self._name(peer, held, client, report.connection)
        held.holder = "".join(filter(str.isprintable, report.holder[:_HOLDER_CHARS_MAX])) or held.holder
        held.bound = max(0, report.oldest)
        if held.bound:
            held.newest = newest_start
        self._ended = [
            each for each in self._ended if not client or each.client != client or each.connection >= report.connection
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
        """Note that the connection ended. The client may still use the starts that it received."""
        held = self._peers.pop(peer, None)
        if held is None:
            return
        self._unname(peer, held)
        if held.bound and not self._reported_later(held):
            self._ended.append(held)
            if len(self._ended) > ENDED_MAX:
                first, second, *rest = self._ended
                merged = Held(min(first.bound, second.bound), max(first.newest, second.newest), holder="ended clients")
                self._ended = [merged, *rest]

    def _reported_later(self, held: Held) -> bool:
        return any(each.connection > held.connection for each in self._of_client.get(held.client, {}).values())

    def held(self) -> dict[Hashable, tuple[int, int]]:
        """Return (bound, newest) of each live connection that may have open starts."""
        return {peer: (held.bound, held.newest) for peer, held in self._peers.items() if held.bound}

    def lowest(self, old: int) -> Held | None:
        """Return the connection that holds E back most, or None. No open start lies below its bound. Starts up to `old`
        do not count."""
        self._ended = [held for held in self._ended if held.newest > old]
        lowest: Held | None = None
        for held in (*self._peers.values(), *self._ended):
            if held.bound and held.newest > old and (lowest is None or held.bound < lowest.bound):
                lowest = held
        return lowest
