"""What the TSO believes of tables: a commit to a *settled* one is decided without a look at the catalog (K6).

    registered    was read in the catalog              } settled
    marked        a durable mark of this TSO stands      }
    else          the catalog is read, what is not in it gets a mark, then the commit is decided

Whoever drops a table, or takes its mark away, sends a fence when the catalog does not call it present any more. The
fence makes the TSO forget, and what was read or marked by a call begun before it is not believed either:

    TSO reads the catalog: t is there | drop: the entry goes, fence | the read's answer comes: t is not known again
"""

from __future__ import annotations

from collections.abc import Iterable


class KnownTables:
    """Of one TSO's life; a new one believes nothing."""

    def __init__(self, registered: Iterable[int] = ()) -> None:
        self.registered = frozenset(registered)
        self.marked: frozenset[int] = frozenset()
        self.unregistered: frozenset[int] = frozenset()
        """Named by commits, and in no catalog: what a bound is put on."""
        self.settled = self.registered
        """Another object whenever it has changed."""
        self._calls: list[set[int]] = []

    def begin_call(self) -> set[int]:
        """Of a read or a mark that begins now: gathers what is forgotten until it ends."""
        call: set[int] = set()
        self._calls.append(call)
        return call

    def end_call(self, call: set[int], *, registered: Iterable[int] | None = None, marked: int | None = None) -> None:
        """`registered`: all tables that were read; `marked`: the one that has a mark now. Neither: the call failed."""
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
        """Remembers those that are in no catalog. False, and none is, where they would be more than so many."""
        unregistered = self.unregistered.union(table_ids) - self.registered
        if len(unregistered) > max(unregistered_max, len(self.unregistered)):
            return False
        self.unregistered = unregistered
        return True
