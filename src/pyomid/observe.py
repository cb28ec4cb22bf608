"""Metrics and spans of a client, and the interface that they implement.

from pyomid.observe import Metrics, Spans

db = pyomid.connect("omid:///path/to/folder", observers=[Metrics(), Spans()])

`Metrics` is for Prometheus (extra pyomid[metrics]). `Spans` is for OpenTelemetry (extra pyomid[tracing]): a span for
each transaction, as child of the span that is current at its begin, with a child for each operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from pyomid.client.observers import Kind, Observer, Operation
from pyomid.client.transaction import State
from pyomid.errors import ConflictError, Misuse, OmidError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider
    from prometheus_client import CollectorRegistry

    from pyomid.client.transaction import RowTransaction

__all__ = ["Kind", "Metrics", "Observer", "Operation", "Spans"]

PREFIX: Final = "pyomid_client_"

BUCKETS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

COUNTERS: Final = {
    "transactions": (
        "Transactions that ended: committed, read (nothing was written), rolled_back, conflict, unknown",
        "outcome",
    ),
    "conflicts": ("Conflicts of transactions that wrote or claimed this table", "table"),
    "retries": ("Reruns after a conflict", ""),
    "errors": ("Operations that raised, by kind and error", "operation,error"),
}
"""Name → description, and labels."""


class Metrics(Observer):
    """Prometheus metrics: `pyomid.connect(url, observers=[Metrics()])`. Use one for all databases of a process.
    `registry`: by default the global one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY, Counter, Gauge, Histogram
        except ModuleNotFoundError as error:
            raise Misuse("metrics need prometheus-client: install pyomid[metrics]") from error
        registry = REGISTRY if registry is None else registry
        self._counters = {
            name: Counter(PREFIX + name, text, [each for each in labels.split(",") if each], registry=registry)
            for name, (text, labels) in COUNTERS.items()
        }
        self._seconds = Histogram(
            f"{PREFIX}operation_seconds", "Time of an operation", ["operation"], buckets=BUCKETS_S, registry=registry
        )
        self._of_kind = {kind: self._seconds.labels(kind.value) for kind in Kind}
        self._open: WeakSet[Any] = WeakSet()
        gauge = Gauge(f"{PREFIX}open_transactions", "Transactions that are open", registry=registry)
        gauge.set_function(lambda: float(len(self._open)))

    def done(self, operation: Operation) -> None:
        self._of_kind[operation.kind].observe(operation.seconds)
        if operation.error is not None:
            code = getattr(operation.error, "code", type(operation.error).__name__)
            self._counters["errors"].labels(operation.kind.value, code).inc()
            if operation.kind is Kind.COMMIT and isinstance(operation.error, ConflictError):
                for table in _tables(operation.error):
                    self._counters["conflicts"].labels(table).inc()
        transaction = operation.transaction
        if transaction is None:
            return
        if operation.kind is Kind.BEGIN:
            self._open.add(transaction)
        elif transaction.has_ended and transaction in self._open:
            self._open.discard(transaction)
            self._counters["transactions"].labels(outcome(operation, transaction)).inc()

    def retried(self, error: ConflictError) -> None:
        self._counters["retries"].inc()


def outcome(operation: Operation, transaction: RowTransaction) -> str:
    """Return the outcome of the transaction that the operation ended."""
    if transaction.state is State.COMMITTED:
        return "read" if transaction.commit_ts is None else "committed"
    if transaction.state is State.UNKNOWN:
        return "unknown"
    return "conflict" if operation.kind is Kind.COMMIT else "rolled_back"


def _tables(error: ConflictError) -> list[str]:
    """Return the tables that the transaction wrote or claimed: the TSO cannot name the one with the conflict."""
    found: dict[str, None] = {}
    for name in ("wrote", "claimed"):
        rows_by_table = error.values.get(name)
        if isinstance(rows_by_table, dict):
            found.update(dict.fromkeys(rows_by_table))
    return list(found)


SYSTEM: Final = "pyomid"


class Spans(Observer):
    """OpenTelemetry spans: `pyomid.connect(url, observers=[Spans()])`. `tracer_provider`: by default the global one.
    The span of a transaction that becomes garbage without commit or rollback never ends, and so is not exported."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace
        except ModuleNotFoundError as error:
            raise Misuse("spans need opentelemetry-api: install pyomid[tracing]") from error
        self._trace = trace
        self._tracer = trace.get_tracer(SYSTEM, tracer_provider=tracer_provider)
        self._open: WeakKeyDictionary[Any, Span] = WeakKeyDictionary()

    def done(self, operation: Operation) -> None:
        transaction = operation.transaction
        parent = None if transaction is None else self._open.get(transaction)
        if transaction is not None and operation.kind is Kind.BEGIN:
            attributes: dict[str, str | int] = {"db.system.name": SYSTEM, "pyomid.start_ts": transaction.start_ts}
            parent = self._tracer.start_span(
                "pyomid transaction", attributes=attributes, start_time=_nanoseconds(operation.began_s)
            )
            self._open[transaction] = parent
        if parent is None and transaction is not None:
            return  # it began before this observer, or ended already
        self._operation(operation, parent)
        if parent is not None and transaction is not None and transaction.has_ended:
            self._end(operation, transaction, parent)

    def _operation(self, operation: Operation, parent: Span | None) -> None:
        attributes = {"db.system.name": SYSTEM, "db.operation.name": operation.kind.value}
        if operation.table:
            attributes["db.collection.name"] = operation.table
        span = self._tracer.start_span(
            f"pyomid {operation.kind.value} {operation.table}".rstrip(),
            context=None if parent is None else self._trace.set_span_in_context(parent),
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes,
            start_time=_nanoseconds(operation.began_s),
        )
        self._note_error(span, operation.error)
        span.end(_nanoseconds(operation.began_s + operation.seconds))

    def _end(self, operation: Operation, transaction: RowTransaction, span: Span) -> None:
        del self._open[transaction]
        if transaction.commit_ts is not None:
            span.set_attribute("pyomid.commit_ts", transaction.commit_ts)
        self._note_error(span, operation.error)
        span.end(_nanoseconds(operation.began_s + operation.seconds))

    def _note_error(self, span: Span, error: BaseException | None) -> None:
        if error is None:
            return
        span.set_attribute("error.type", error.code if isinstance(error, OmidError) else type(error).__name__)
        span.set_status(self._trace.StatusCode.ERROR, str(error))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
