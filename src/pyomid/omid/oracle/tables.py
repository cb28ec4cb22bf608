"""The tables that the TSO knows. It decides a commit to a *decidable* table without reading the catalog (K6).

    registered    the catalog lists it                   } decidable
    marked        this TSO put a durable mark of it      }
    other         the TSO reads the catalog, marks the table if it is missing there, then decides the commit

A client that drops a table, or removes its mark, sends a fence once the table is no longer `PRESENT` in the catalog.
The fence makes the TSO forget the table. The TSO also ignores the result of a read or mark that began before the fence:

    TSO reads the catalog: lists t | drop: entry deleted, fence | the read's result arrives: t stays forgotten
"""

from __future__ import annotations

from collections.abc import Iterable


class KnownTables:
    """The tables that one TSO has found registered or marked. A new TSO knows none."""

    def __init__(self, registered: Iterable[int] = ()) -> None:
        self.registered = frozenset(registered)
        self.marked: frozenset[int] = frozenset()
        self.unregistered: frozenset[int] = frozenset()
        """The tables that commits named and the catalog does not list. Their number is bounded."""
        self.decidable = self.registered
        """The tables whose commits may be decided. Each change replaces the set."""
        self._calls: list[set[int]] = []

    def begin_call(self) -> set[int]:
        """Begin a catalog read or a mark. The returned set collects the tables that are forgotten until the call
        ends."""
        call: set[int] = set()
        self._calls.append(call)
        return call

    def end_call(self, call: set[int], *, registered: Iterable[int] | None = None, marked: int | None = None) -> None:
        """End a call with its result: `registered` are all tables that it read, `marked` is the table that it marked.
        If both are None, the call failed."""
        self._calls = [other for other in self._calls if other is not call]
        if registered is not None:
            self.registered = frozenset(registered) - call
            self.unregistered -= self.registered
            self.marked -= self.registered  # registering a table with an earlier version of pyomid removes its mark
        if marked is not None and marked not in call:
            self.marked |= {marked}
        decidable = self.registered | self.marked
        if decidable != self.decidable:
            self.decidable = decidable

    def forget(self, table_id: int) -> None:
        for call in self._calls:
            call.add(table_id)
        if table_id in self.decidable:
            self.registered -= {table_id}
            self.marked -= {table_id}
            self.decidable -= {table_id}

    def name(self, table_ids: Iterable[int], unregistered_max: int) -> bool:
        """Remember the tables that the catalog does not list. Returns False, and remembers none, if there would be more
        than `unregistered_max`."""
        unregistered = self.unregistered.union(table_ids) - self.registered
        if len(unregistered) > max(unregistered_max, len(self.unregistered)):
            return False
        self.unregistered = unregistered
        return True
