"""Checker of recorded histories for strict snapshot isolation, which reports the shortest anomaly under its name in the
literature.

Every transaction has two points in logical time, its begin B and its commit C. The reads of a history fix the order of
these points:

    T2 read what T1 wrote                          C1 < B2      wr
    T2 overwrote what T1 wrote                     C1 < B2      ww   (first committer wins)
    T1 read what T2 then overwrote                 B1 < C2      rw   (otherwise T1 would have seen T2)
    a call was made after the reply to another     real time    rt   (strictness; I3)

The history is strictly snapshot isolated iff these edges, with B < C of each transaction, have no cycle (the
begin–commit graph of Tan et al., "Cobra"/"Viper"; Adya's G-SIa and G-SIb in one). Write skew is a cycle of the
serialization graph only; it is permitted, and `Verdict.write_skew` shows one, so that a test can require that a
workload is able to produce it.

Two other checks need no graph. `check_timestamps` compares reads with the transactions' timestamps, which is the
definition of snapshot isolation itself; `check_sums` checks the totals of a simulated bank.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pyomid.testing.history import History, Item, Operation, Outcome, Read, Scan, Transaction, Write

INITIAL = -1
"""The writer of the initial state, in which every item is absent."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One violation: its name, its transactions, and the steps that prove it, one line each."""

    name: str
    transactions: tuple[str, ...]
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return "\n  ".join((f"{self.name} ({', '.join(self.transactions)})", *self.steps))


@dataclass(slots=True)
class Verdict:
    """The anomalies of a history, the shortest first. If there are none, nothing in the history contradicts strict
    snapshot isolation. `write_skew` is a permitted write skew, if there is one."""

    anomalies: list[Anomaly] = field(default_factory=list)
    write_skew: Anomaly | None = None

    @property
    def ok(self) -> bool:
        return not self.anomalies

    def __str__(self) -> str:
        return "\n".join(map(str, self.anomalies)) or "strictly snapshot isolated"


class Violation(AssertionError):
    """Raised by `demand` if there is an anomaly; the message is the verdict as text."""


def demand(history: History) -> Verdict:
    """Return the verdict of `check` and `check_timestamps`. Raise `Violation` if there is an anomaly."""
    verdict = check(history)
    verdict.anomalies.extend(check_timestamps(history))
    if not verdict.ok:
        raise Violation(str(verdict))
    return verdict


def check(history: History) -> Verdict:
    """Return the verdict that follows from reads and real time alone. Timestamps are used only to order the versions of
    an item."""
    evidence = _Evidence(history)
    anomalies = evidence.direct_anomalies()
    if anomalies:
        return Verdict(sorted(anomalies, key=lambda found: len(found.steps)))
    graph = _begin_commit_graph(evidence)
    cycle = _shortest_cycle(graph)
    if not cycle:
        _add_real_time(graph, evidence)
        cycle = _shortest_cycle(graph)
    if cycle:
        return Verdict([_named(cycle, evidence)])
    return Verdict([], _write_skew(evidence))


# ---------------------------------------------------------------- writes and reads


@dataclass(slots=True)
class _Seen:
    """One resolved read: transaction, item, and the transaction that wrote the value."""

    reader: int
    item: Item
    writer: int
    op: Operation


class _Evidence:
    """A prepared history: the writer of each value, the committed transactions, and the writer of each value that was
    read."""

    def __init__(self, history: History) -> None:
        self.txns: list[Transaction] = history.transactions
        self.writer_of: dict[tuple[Item, str], int] = {}
        self.last: list[dict[Item, str | None]] = [txn.last_writes() for txn in self.txns]
        self.items_of_table: dict[str, set[Item]] = defaultdict(set)
        self.duplicates: list[tuple[Item, str]] = []
        for index, txn in enumerate(self.txns):
            for write in txn.writes():
                self.items_of_table[write.item.table].add(write.item)
                if write.value is not None:
                    known = self.writer_of.setdefault((write.item, write.value), index)
                    if known != index:
                        self.duplicates.append((write.item, write.value))
        self.committed = self._committed()
        self.orders: dict[Item, list[int]] = {}
        self._places: dict[Item, dict[int, int]] = {}
        self._deletes: dict[Item, list[int]] | None = None
        self.successors: dict[Item, dict[int, set[int]]] = {}
        self.broken_lists: list[Anomaly] = []
        self._order_versions()
        self.seen: list[_Seen] = [seen for index in range(len(self.txns)) for seen in self._reads_of(index)]

    def _committed(self) -> set[int]:
        """Return the transactions whose commit was acknowledged, or whose outcome is unknown but whose writes another
        transaction saw."""
        seen_by_others: set[int] = set()
        for index, txn in enumerate(self.txns):
            for item, value in _values_read(txn):
                writer = self.writer_of.get((item, value)) if value is not None else None
                if writer is not None and writer != index:
                    seen_by_others.add(writer)
        return {
            index
            for index, txn in enumerate(self.txns)
            if txn.outcome is Outcome.COMMITTED or (txn.outcome is Outcome.UNKNOWN and index in seen_by_others)
        }

    # ------------------------------------------------------------ the order of versions

    def _order_versions(self) -> None:
        writers: dict[Item, list[int]] = defaultdict(list)
        for index in sorted(self.committed):
            for item in self.last[index]:
                writers[item].append(index)
        for item, indexes in writers.items():
            if all(_is_list(self.last[index][item]) for index in indexes):
                self.orders[item] = self._order_of_lists(item, indexes)
            elif len(indexes) == 1:
                self.orders[item] = indexes
            elif all(self.txns[index].commit_ts is not None for index in indexes):
                self.orders[item] = sorted(indexes, key=lambda index: self.txns[index].commit_ts or 0)
            else:
                self._infer_order(item, indexes)

    def _order_of_lists(self, item: Item, indexes: list[int]) -> list[int]:
        """Return the order of list versions. The longer list is later, and must extend the shorter one; otherwise an
        append was lost."""
        ordered = sorted(indexes, key=lambda index: len(list_elements(self.last[index][item])))
        for earlier, later in pairwise(ordered):
            before, after = list_elements(self.last[earlier][item]), list_elements(self.last[later][item])
            if after[: len(before)] != before:
                names = (self.txns[earlier].name, self.txns[later].name)
                steps = (f"{names[0]} wrote {item} = {before}", f"{names[1]} wrote {item} = {after}")
                self.broken_lists.append(Anomaly("lost update", names, steps))
        return ordered

    def _infer_order(self, item: Item, indexes: list[int]) -> None:
        """Infer an order without timestamps. A version follows the version that its writer read, and every version
        whose commit was acknowledged before its writer began. If this gives no complete chain, only pairs are known."""
        following: dict[int, set[int]] = defaultdict(set)
        for index in indexes:
            first = _first_read(self.txns[index], item)
            if first is None:
                continue
            if first.value is None:
                if not any(self.last[other][item] is None for other in (*indexes, *self._unknown_deletes(item))):
                    following[INITIAL].add(index)
                continue
            writer = self.writer_of.get((item, first.value))
            if writer is not None and writer != index:
                following[writer].add(index)
        by_time = sorted(indexes, key=lambda index: self.txns[index].begin_called)
        if all(
            _answered(self.txns[a]) is not None and (_answered(self.txns[a]) or 0.0) < self.txns[b].begin_called
            for a, b in pairwise(by_time)
        ):
            self.orders[item] = by_time
            return
        chain: list[int] = []
        at = INITIAL
        while len(following.get(at, ())) == 1 and len(chain) <= len(indexes):
            at = next(iter(following[at]))
            chain.append(at)
        if len(chain) == len(indexes):
            self.orders[item] = chain
        else:
            self.successors[item] = following

    def next_writers(self, item: Item, writer: int) -> Iterable[int]:
        """Return the transactions that are known to have overwritten the version of `writer`."""
        order = self.orders.get(item)
        if order is None:
            return self.successors.get(item, {}).get(writer, ())
        place = -1 if writer == INITIAL else self._place(item, writer)
        return order[place + 1 : place + 2]

    def _place(self, item: Item, writer: int) -> int:
        places = self._places.get(item)
        if places is None:
            places = self._places[item] = {index: place for place, index in enumerate(self.orders[item])}
        return places[writer]

    # ------------------------------------------------------------ reads

    def _reads_of(self, index: int) -> Iterator[_Seen]:
        """Yield the first read of each item that the transaction has not written before; `direct_anomalies` checks
        repeated reads."""
        txn = self.txns[index]
        own: set[Item] = set()
        done: set[Item] = set()
        for op in txn.operations:
            if isinstance(op, Write):
                own.add(op.item)
                continue
            for item, value in self._read_pairs(op):
                if item in own or item in done:
                    continue
                done.add(item)
                writer = self._writer(index, item, value)
                if writer is not None:
                    yield _Seen(index, item, writer, op)

    def _read_pairs(self, op: Operation) -> Iterator[tuple[Item, str | None]]:
        if isinstance(op, Read):
            yield op.item, op.value
        elif isinstance(op, Scan):
            found = dict(op.found)
            yield from found.items()
            for item in self.items_of_table[op.table]:
                if item not in found and op.covers(item):
                    yield item, None

    def _writer(self, reader: int, item: Item, value: str | None) -> int | None:
        if value is not None:
            writer = self.writer_of.get((item, value))
            return writer if writer in self.committed else None
        return self._writer_of_absence(reader, item)

    def _writer_of_absence(self, reader: int, item: Item) -> int | None:
        """Return the transaction that made an item absent: INITIAL, or a transaction that deleted it. If several are
        possible, timestamps decide, or real time if there are no timestamps.

        A delete with unknown outcome leaves no trace but absence. If such a delete may have been the last write, the
        result is None.
        """
        if any(self._may_be_seen(self.txns[reader], item, index) for index in self._unknown_deletes(item)):
            return None
        order = self.orders.get(item)
        if order is None:
            return None if item in self.successors else INITIAL
        candidates = [INITIAL, *(index for index in order if self.last[index][item] is None)]
        if len(candidates) == 1:
            return INITIAL
        txn = self.txns[reader]
        if txn.start_ts is not None and all(self.txns[index].commit_ts is not None for index in order):
            fitting = [
                index
                for index in candidates
                if index == INITIAL or (self.txns[index].commit_ts or 0) < (txn.start_ts or 0)
            ]
            return fitting[-1]
        possible = [index for index in candidates if self._may_be_seen(txn, item, index)]
        return possible[0] if len(possible) == 1 else None if possible else candidates[-1]

    def _unknown_deletes(self, item: Item) -> Iterable[int]:
        if self._deletes is None:
            self._deletes = defaultdict(list)
            for index in set(range(len(self.txns))) - self.committed:
                if self.txns[index].outcome is Outcome.UNKNOWN and self.txns[index].commit_called is not None:
                    for deleted, value in self.last[index].items():
                        if value is None:
                            self._deletes[deleted].append(index)
        return self._deletes[item]

    def _may_be_seen(self, reader: Transaction, item: Item, writer: int) -> bool:
        if writer != INITIAL and (self.txns[writer].commit_called or 0.0) > reader.begin_answered:
            return False
        if writer != INITIAL and writer not in self.committed:
            return True
        return all(
            (answered := _answered(self.txns[following])) is None or answered >= reader.begin_called
            for following in self.next_writers(item, writer)
        )

    # ------------------------------------------------------------ anomalies visible without the graph

    def direct_anomalies(self) -> list[Anomaly]:
        found = list(self.broken_lists)
        for item, value in self.duplicates:
            found.append(
                Anomaly("not a history", (), (f"{item} = {value!r} was written twice: values must be unique",))
            )
        for index in range(len(self.txns)):
            found.extend(self._inside(index))
        return found

    def _inside(self, index: int) -> Iterator[Anomaly]:
        """Check a transaction's reads against its own writes, its earlier reads (I1), and the writers' commits (I4)."""
        txn = self.txns[index]
        own: dict[Item, str | None] = {}
        before: dict[Item, str | None] = {}
        for op in txn.operations:
            if isinstance(op, Write):
                own[op.item] = op.value
                continue
            for item, value in self._read_pairs(op):
                line = f"{txn.name} read {item} = {value!r}"
                if item in own:
                    if own[item] != value:
                        yield Anomaly("own write lost", (txn.name,), (f"{txn.name} wrote {item} = {own[item]!r}", line))
                    continue
                if item in before and before[item] != value:
                    earlier = f"{txn.name} had read {item} = {before[item]!r}"
                    yield Anomaly("non-repeatable read", (txn.name,), (earlier, line))
                before[item] = value
                if value is not None:
                    yield from self._against_writer(index, item, value, _time_of(op), line)

    def _against_writer(self, reader: int, item: Item, value: str, at: float, line: str) -> Iterator[Anomaly]:
        writer = self.writer_of.get((item, value))
        if writer is None:
            yield Anomaly("garbage read", (self.txns[reader].name,), (line, "no transaction wrote that"))
            return
        author = self.txns[writer]
        names = (self.txns[reader].name, author.name)
        if writer == reader:
            yield Anomaly("future read", names[:1], (line, "which it wrote only later"))
        elif author.outcome is Outcome.ABORTED:
            yield Anomaly("aborted read", names, (line, f"{author.name} was reported aborted"))
        elif self.last[writer].get(item) != value:
            yield Anomaly("intermediate read", names, (line, f"{author.name} overwrote it before its commit"))
        elif author.commit_called is None or (at and author.commit_called > at):
            yield Anomaly("dirty read", names, (line, f"{author.name} had not called commit yet"))


def _values_read(txn: Transaction) -> Iterator[tuple[Item, str | None]]:
    for op in txn.operations:
        if isinstance(op, Read):
            yield op.item, op.value
        elif isinstance(op, Scan):
            yield from op.found


def _first_read(txn: Transaction, item: Item) -> Read | None:
    for op in txn.operations:
        if isinstance(op, Write) and op.item == item:
            return None
        if isinstance(op, Read) and op.item == item:
            return op
        if isinstance(op, Scan) and op.covers(item):
            return Read(item, dict(op.found).get(item), op.at)
    return None


def _answered(txn: Transaction) -> float | None:
    return txn.commit_answered if txn.outcome is Outcome.COMMITTED else None


def _time_of(op: Operation) -> float:
    return 0.0 if isinstance(op, Write) else op.at


def _is_list(value: str | None) -> bool:
    return value is not None and value.startswith("[") and value.endswith("]")


def list_value(elements: Sequence[str]) -> str:
    """Return the value of a list in a list-append workload, in the form that the checker recognizes."""
    return f"[{','.join(elements)}]"


def list_elements(value: str | None) -> list[str]:
    """Return the elements of such a value. An absent value counts as the empty list."""
    return value[1:-1].split(",") if value is not None and len(value) > 2 else []


# ---------------------------------------------------------------- the begin–commit graph


@dataclass(frozen=True, slots=True)
class _Edge:
    kind: str
    source: int
    target: int
    item: Item | None = None


class _Graph:
    """A graph with ints as nodes: 2i is the begin of transaction i, 2i + 1 is its commit, and other nodes are
    instants."""

    def __init__(self) -> None:
        self.out: dict[int, list[_Edge]] = defaultdict(list)

    def add(self, kind: str, source: int, target: int, item: Item | None = None) -> None:
        self.out[source].append(_Edge(kind, source, target, item))


def _begin(index: int) -> int:
    return 2 * index


def _commit(index: int) -> int:
    return 2 * index + 1


def _begin_commit_graph(evidence: _Evidence) -> _Graph:
    """Return the graph of data dependencies. `_add_real_time` adds real time later, because a cycle of data
    dependencies alone explains more."""
    graph = _Graph()
    for index in evidence.committed:
        graph.add("own", _begin(index), _commit(index))
    for kind, source, target, item in _dependencies(evidence):
        if kind == "rw":
            graph.add(kind, _begin(source), _commit(target), item)
        else:
            graph.add(kind, _commit(source), _begin(target), item)
    return graph


def _dependencies(evidence: _Evidence) -> Iterator[tuple[str, int, int, Item]]:
    """Yield dependencies (kind, from, to, item) between different transactions. The `to` of ww and rw is committed."""
    for item, order in evidence.orders.items():
        for earlier, later in pairwise(order):
            yield "ww", earlier, later, item
    for item, following in evidence.successors.items():
        for earlier, laters in following.items():
            if earlier != INITIAL and earlier in evidence.committed:
                for later in laters:
                    yield "ww", earlier, later, item
    for seen in evidence.seen:
        if seen.writer != INITIAL and seen.writer != seen.reader:
            yield "wr", seen.writer, seen.reader, seen.item
        for later in evidence.next_writers(seen.item, seen.writer):
            if later != seen.reader:
                yield "rw", seen.reader, later, seen.item


def _add_real_time(graph: _Graph, evidence: _Evidence) -> None:
    """Add edges from each reply to each later call, through a chain of instants, so that their number is linear, not
    quadratic."""
    answers: list[tuple[float, int]] = []
    calls: list[tuple[float, int]] = []
    for index, txn in enumerate(evidence.txns):
        answers.append((txn.begin_answered, _begin(index)))
        calls.append((txn.begin_called, _begin(index)))
        if index in evidence.committed and evidence.last[index]:
            if txn.commit_answered is not None:
                answers.append((txn.commit_answered, _commit(index)))
            if txn.commit_called is not None:
                calls.append((txn.commit_called, _commit(index)))
    times = sorted({time for time, _ in answers})
    first = 2 * len(evidence.txns)
    place = {time: first + number for number, time in enumerate(times)}
    for number in range(len(times) - 1):
        graph.add("rt", first + number, first + number + 1)
    for time, node in answers:
        graph.add("rt", node, place[time])
    for time, node in calls:
        earlier = bisect_left(times, time)
        if earlier:
            graph.add("rt", first + earlier - 1, node)


# ---------------------------------------------------------------- cycles

_STARTS_MAX = 400
"""Maximum number of nodes of one component that are tried as the start of a cycle, which finds a short cycle in bounded
time."""


def _shortest_cycle(graph: _Graph) -> list[_Edge]:
    best: list[_Edge] = []
    for component in _components(graph):
        for start in sorted(component)[:_STARTS_MAX]:
            cycle = _cycle_through(graph, start, component)
            if cycle and (not best or _length(cycle) < _length(best)):
                best = cycle
    return best


def _length(cycle: list[_Edge]) -> tuple[int, int]:
    """Return a sort key: the number of steps that the anomaly shows, then the number of edges."""
    data = sum(edge.kind not in ("rt", "own") for edge in cycle)
    return (1 if any(edge.kind == "rt" for edge in cycle) else 0) + data, len(cycle)


def _cycle_through(graph: _Graph, start: int, component: set[int]) -> list[_Edge]:
    came_by: dict[int, _Edge] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for edge in graph.out.get(node, ()):
            if edge.target not in component or edge.target in came_by:
                continue
            came_by[edge.target] = edge
            if edge.target == start:
                return _path_to(start, came_by)
            (queue.appendleft if edge.kind == "rt" and edge.source != start else queue.append)(edge.target)
    return []


def _path_to(start: int, came_by: dict[int, _Edge]) -> list[_Edge]:
    path = [came_by[start]]
    while path[-1].source != start:
        path.append(came_by[path[-1].source])
    return path[::-1]


def _components(graph: _Graph) -> Iterator[set[int]]:
    """Yield strongly connected components of more than one node (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    for root in list(graph.out):
        if root in index:
            continue
        work: list[tuple[int, Iterator[_Edge]]] = [(root, iter(graph.out.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, edges = work[-1]
            for edge in edges:
                if edge.target not in index:
                    index[edge.target] = low[edge.target] = len(index)
                    stack.append(edge.target)
                    on_stack.add(edge.target)
                    work.append((edge.target, iter(graph.out.get(edge.target, ()))))
                    break
                if edge.target in on_stack:
                    low[node] = min(low[node], index[edge.target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: set[int] = set()
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.add(member)
                        if member == node:
                            break
                    if len(component) > 1:
                        yield component


# ---------------------------------------------------------------- names

_MEANING = {
    "wr": "{b} read what {a} wrote to {item}",
    "ww": "{b} overwrote what {a} wrote to {item}",
    "rw": "{a} did not see what {b} wrote to {item}",
}


def _named(cycle: list[_Edge], evidence: _Evidence) -> Anomaly:
    transactions = len(evidence.txns)
    data = [edge for edge in cycle if edge.kind in _MEANING]
    names = list(
        dict.fromkeys(
            _name(node, evidence) for edge in cycle for node in (edge.source, edge.target) if node < 2 * transactions
        )
    )
    steps = [
        _MEANING[edge.kind].format(a=_name(edge.source, evidence), b=_name(edge.target, evidence), item=edge.item)
        for edge in data
    ]
    timed = any(edge.kind == "rt" for edge in cycle)
    if timed:
        steps.extend(_real_time_steps(cycle, evidence))
    return Anomaly(_name_of(data, timed, evidence), tuple(names), tuple(steps))


def _name(node: int, evidence: _Evidence) -> str:
    return evidence.txns[node // 2].name if node < 2 * len(evidence.txns) else ""


def _real_time_steps(cycle: list[_Edge], evidence: _Evidence) -> Iterator[str]:
    """Yield one sentence for each part of the cycle that runs through real time."""
    real = 2 * len(evidence.txns)
    turned = next(at for at, edge in enumerate(cycle) if edge.source < real)
    entry = 0
    for edge in cycle[turned:] + cycle[:turned]:
        if edge.source < real <= edge.target:
            entry = edge.source
        elif edge.source >= real > edge.target:
            said = "commit of" if entry % 2 else "begin of"
            then = "commit of" if edge.target % 2 else "begin of"
            yield (
                f"{said} {_name(entry, evidence)} was answered before {then} {_name(edge.target, evidence)} was called"
            )


def _name_of(data: list[_Edge], timed: bool, evidence: _Evidence) -> str:
    kinds = [edge.kind for edge in data]
    misses = kinds.count("rw")
    if timed:
        if not misses:
            return "first-committer-wins violated" if "wr" not in kinds else "future read"
        return "stale read" if misses == 1 else "long fork"
    if misses == 0:
        return "dirty write" if "wr" not in kinds else "circular information flow"
    if misses > 1:
        return "long fork"
    if len(data) == 2 and "ww" in kinds:
        return "lost update" if data[0].item == data[1].item else "read skew"
    if len(data) == 2 and _saw_before_it_missed(data, evidence):
        return "fractured read"
    return "read skew"


def _saw_before_it_missed(data: list[_Edge], evidence: _Evidence) -> bool:
    """Whether the reader first saw one write of a commit and then missed the other (half a commit), and not in the
    reverse order (a moving snapshot)."""
    saw = next(edge for edge in data if edge.kind == "wr")
    missed = next(edge for edge in data if edge.kind == "rw")
    reads = [seen for seen in evidence.seen if seen.reader == missed.source // 2]
    places = {seen.item: place for place, seen in enumerate(reads)}
    return saw.item is not None and missed.item is not None and places[saw.item] < places[missed.item]


# ---------------------------------------------------------------- write skew, which is permitted


def _write_skew(evidence: _Evidence) -> Anomaly | None:
    graph = _Graph()
    for kind, source, target, item in _dependencies(evidence):
        if source in evidence.committed and target in evidence.committed:
            graph.add(kind, source, target, item)
    cycle = _shortest_cycle(graph)
    if not cycle:
        return None
    names = tuple(evidence.txns[edge.source].name for edge in cycle)
    steps = tuple(
        _MEANING[edge.kind].format(a=evidence.txns[edge.source].name, b=evidence.txns[edge.target].name, item=edge.item)
        for edge in cycle
    )
    return Anomaly("write skew", names, steps)


# ---------------------------------------------------------------- the definition itself, and totals


def check_timestamps(history: History) -> list[Anomaly]:
    """Compare each read with the last commit below the reader's start, for transactions with known timestamps.

    Also check that commit timestamps are unique, differ from all starts and lie above their own starts, and that
    writers of one item do not overlap (I2, I7). Transactions over a folder may share a start.
    """
    timed = [txn for txn in history.transactions if txn.start_ts is not None]
    anomalies = list(_reused_timestamps(timed))
    complete = all(
        txn.commit_ts is not None
        for txn in history.transactions
        if txn.outcome is Outcome.COMMITTED and txn.last_writes()
    )
    writers = _commits_by_item(timed)
    for item, commits in writers.items():
        for (_, earlier), (_, later) in pairwise(commits):
            if (later.start_ts or 0) < (earlier.commit_ts or 0):
                lines = (f"{_span(earlier)} wrote {item}", f"{_span(later)} wrote {item}")
                anomalies.append(Anomaly("first-committer-wins violated", (earlier.name, later.name), lines))
    if complete and not any(txn.outcome is Outcome.UNKNOWN for txn in history.transactions):
        for txn in timed:
            anomalies.extend(_misreadings(txn, writers))
    return anomalies


def _span(txn: Transaction) -> str:
    return f"{txn.name} [{txn.start_ts} … {txn.commit_ts}]"


def _reused_timestamps(timed: Sequence[Transaction]) -> Iterator[Anomaly]:
    owner = {txn.start_ts: txn for txn in timed}
    for txn in timed:
        if txn.outcome is Outcome.COMMITTED and txn.commit_ts:
            if txn.commit_ts <= (txn.start_ts or 0):
                yield Anomaly("commit not above start", (txn.name,), (_span(txn),))
            other = owner.setdefault(txn.commit_ts, txn)
            if other is not txn:
                yield Anomaly("timestamp reused", (other.name, txn.name), (_span(other), _span(txn)))


def _commits_by_item(timed: Iterable[Transaction]) -> dict[Item, list[tuple[int, Transaction]]]:
    writers: dict[Item, list[tuple[int, Transaction]]] = defaultdict(list)
    for txn in timed:
        if txn.outcome is Outcome.COMMITTED and txn.commit_ts is not None:
            for item in txn.last_writes():
                writers[item].append((txn.commit_ts, txn))
    for commits in writers.values():
        commits.sort(key=lambda pair: pair[0])
    return writers


def _misreadings(txn: Transaction, writers: dict[Item, list[tuple[int, Transaction]]]) -> Iterator[Anomaly]:
    own: set[Item] = set()
    for op in txn.operations:
        if isinstance(op, Write):
            own.add(op.item)
        elif isinstance(op, Read) and op.item not in own:
            yield from _misread(txn, op.item, op.value, writers)
        elif isinstance(op, Scan):
            found = dict(op.found)
            for item in writers:
                if op.covers(item) and item not in own:
                    yield from _misread(txn, item, found.get(item), writers)


def _misread(
    txn: Transaction, item: Item, value: str | None, writers: dict[Item, list[tuple[int, Transaction]]]
) -> Iterator[Anomaly]:
    commits = writers.get(item, [])
    place = bisect_left(commits, txn.start_ts or 0, key=lambda pair: pair[0])
    expected = commits[place - 1][1].last_writes()[item] if place else None
    if value != expected:
        steps = (f"{_span(txn)} read {item} = {value!r}", f"its snapshot holds {expected!r}")
        yield Anomaly("wrong snapshot", (txn.name,), steps)


def check_sums(history: History, total: int, amount_of: Callable[[str], int]) -> list[Anomaly]:
    """Return the violations of a bank's total: every scan before the first write of its transaction must add up to
    `total`."""
    anomalies = []
    for txn in history.transactions:
        for op in txn.operations:
            if isinstance(op, Write):
                break
            if isinstance(op, Scan):
                amount = sum(amount_of(value) for _, value in op.found)
                if amount != total:
                    anomalies.append(Anomaly("wrong sum", (txn.name,), (f"{amount} instead of {total}",)))
    return anomalies
