"""Metrics of a client, for Prometheus (extra pyomid[metrics])."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pyomid.client.observers.observer import Kind, Observer, Operation
from pyomid.client.transaction import State
from pyomid.errors import ConflictError, Misuse

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from pyomid.client.transaction import RowTransaction

PREFIX: Final = "pyomid_client_"

BUCKETS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

COUNTERS: Final = {
    "transactions": (
        "Transactions that ended: committed, read (nothing was written), rolled_back, conflict, unknown",
        "outcome",
    ),
    "conflicts": ("Conflicts of transactions that wrote or claimed this table", "table"),
    "retries": ("Runs that went on after a conflict", ""),
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


def outcome(operation: Operation, transaction: RowTransaction[Any]) -> str:
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
