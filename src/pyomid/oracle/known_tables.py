"""What the TSO remembers of tables: a commit to a *settled* table is decided without reading the catalog (K6).

    registered    was read in the catalog                } settled
    marked        a durable mark of this TSO stands      }
    other         the catalog is read, a table that is not in it gets a mark, then the commit is decided

A client that drops a table, or removes its mark, sends a fence when the catalog no longer calls the table present. The
fence makes the TSO forget the table. The TSO also ignores what was read or marked by a call that began before the
fence:

    TSO reads the catalog: t is there | drop: the entry goes, fence | the read's answer comes: t is not known again
"""

from __future__ import annotations

from collections.abc import Iterable


class KnownTables:
    """The tables that one TSO knows. A new TSO knows none."""

    def __init__(self, registered: Iterable[int] = ()) -> None:
        self.registered = frozenset(registered)
        self.marked: frozenset[int] = frozenset()
        self.unregistered: frozenset[int] = frozenset()
        """Tables that commits named and the catalog does not list. Their number is bounded."""
        self.settled = self.registered
        """It is another object whenever it has changed."""
        self._calls: list[set[int]] = []

    def begin_call(self) -> set[int]:
        """A read or a mark begins: the returned set gathers the tables that are forgotten until it ends."""
        call: set[int] = set()
        self._calls.append(call)
        return call

    def end_call(self, call: set[int], *, registered: Iterable[int] | None = None, marked: int | None = None) -> None:
        """The call ended. `registered`: all tables that it read; `marked`: the table that it marked; neither: it
        failed."""
        self._calls = [other for other in self._calls if other is not call]
        if registered is not None:
            self.registered = frozenset(registered) - call
            self.unregistered -= self.registered
            self.marked -= self.registered  # a registration of an earlier version takes the mark away
        if marked is not None and marked not in call:
            self.marked |= {marked}
        settled = self.registered | self.marked
        if settled != self.settled:
            self.settled = settled

    def forget(self, table_id: int) -> None:
        for call in self._calls:
            call.add(table_id)
        if table_id in self.settled:
            self.registered -= {table_id}
            self.marked -= {table_id}
            self.settled -= {table_id}

    def name(self, table_ids: Iterable[int], unregistered_max: int) -> bool:
        """Remembers those of the tables that the catalog does not list. False, and remembers none, if they would be
        more than `unregistered_max`."""
        unregistered = self.unregistered.union(table_ids) - self.registered
        if len(unregistered) > max(unregistered_max, len(self.unregistered)):
            return False
        self.unregistered = unregistered
        return True
