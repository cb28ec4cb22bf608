"""Observers of a client's operations and their durations, among them metrics and spans.

    from pyomid.observe import Metrics, Spans

    db = pyomid.connect("omid:///path/to/folder", observers=[Metrics(), Spans()])

`Metrics` exports to Prometheus (extra pyomid[metrics]). `Spans` exports to OpenTelemetry (extra pyomid[tracing]): each
transaction gets a span under the span that is current when it begins, with a child span for each operation.

    begin, read, scan, commit, rollback ───▶ `Reports.whole` ──`Operation`──▶ `Observer.done` of each
    a rerun follows a conflict     ────────────────────────────────────────────▶ `Observer.retried`

A database without observers has no `Reports`; an operation then costs only the check for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from pyomid.coroutines import Routine
from pyomid.errors import ConflictError, Misuse, OmidError, extra_missing

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider
    from prometheus_client import CollectorRegistry


logger = logging.getLogger(__name__)

T = TypeVar("T")


class Kind(StrEnum):
    """The kind of an operation."""

    BEGIN = "begin"
    READ = "read"
    """A read of rows by their keys."""
    SCAN = "scan"
    """The read of one batch of a scan."""
    COMMIT = "commit"
    """A commit, including its flush."""
    ROLLBACK = "rollback"


class Observed(Protocol):
    """The properties of a transaction that an observer reads."""

    @property
    def start_ts(self) -> int: ...

    @property
    def commit_ts(self) -> int | None: ...

    @property
    def state(self) -> StrEnum: ...

    @property
    def has_ended(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that has ended, either successfully or with `error`."""

    kind: Kind
    transaction: Observed | None
    """None if the begin failed. Observers must keep only weak references, because an abandoned transaction ends only
    when it is garbage."""
    table: str
    """The table of a read or scan; otherwise empty."""
    began_s: float
    """When the operation began, in seconds since 1970."""
    seconds: float
    error: BaseException | None = None


class Observer:
    """The base class of observers. The methods of the base class do nothing. A subclass's methods run in the
    transaction's thread or event loop, so they must not block. The client logs the first error that an observer raises,
    and ignores later errors."""

    def done(self, operation: Operation) -> None:
        """Called after an operation has ended."""

    def retried(self, error: ConflictError) -> None:
        """Called before the client reruns the function of `run`, `run_once` or `transactional` because of this
        conflict."""


class Reports:
    """Reports operations and reruns to all observers of a database."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers: Final = tuple(observers)
        self._failed: set[int] = set()

    async def whole(self, kind: Kind, transaction: Observed, table: str, routine: Routine[T]) -> T:
        """Run the routine, report its end to the observers, and return its result."""
        began_s, clock_s = time.time(), time.perf_counter()
        error: BaseException | None = None
        try:
            return await routine
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._report(kind, transaction, table, began_s, clock_s, error)
            del error  # its traceback holds this frame

    async def begin(self, routine: Routine[T]) -> T:
        """Run a routine that begins a transaction, report it as `whole` does, and return the transaction."""
        began_s, clock_s = time.time(), time.perf_counter()
        try:
            transaction: Any = await routine
        except BaseException as error:
            self._report(Kind.BEGIN, None, "", began_s, clock_s, error)
            raise
        self._report(Kind.BEGIN, transaction, "", began_s, clock_s, None)
        begun: T = transaction
        return begun

    def retried(self, error: ConflictError) -> None:
        for observer in self._observers:
            try:
                observer.retried(error)
            except Exception as raised:
                self._log(observer, raised)

    def _report(
        self,
        kind: Kind,
        transaction: Observed | None,
        table: str,
        began_s: float,
        clock_s: float,
        error: BaseException | None,
    ) -> None:
        seconds = time.perf_counter() - clock_s
        for observer in self._observers:
            try:
                observer.done(Operation(kind, transaction, table, began_s, seconds, error))
            except Exception as raised:
                self._log(observer, raised)

    def _log(self, observer: Observer, error: Exception) -> None:
        """Log the first error of each observer."""
        if id(observer) not in self._failed:
            self._failed.add(id(observer))
            logger.warning(
                "observer %r raised %r; pyomid still calls this observer, but does not log its further errors",
                observer,
                error,
            )


def reports_to(observers: Sequence[Observer]) -> Reports | None:
    return Reports(observers) if observers else None


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
"""The name of each counter, its description and its labels."""


class Metrics(Observer):
    """An observer that exports Prometheus metrics: `pyomid.connect(url, observers=[Metrics()])`. Use one `Metrics` for
    all databases of a process. The default of `registry` is Prometheus's global registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY, Counter, Gauge, Histogram
        except ModuleNotFoundError as error:
            raise extra_missing("Metrics needs the package prometheus-client", "metrics") from error
        registry = REGISTRY if registry is None else registry
        try:
            self._counters = {
                name: Counter(PREFIX + name, text, [each for each in labels.split(",") if each], registry=registry)
                for name, (text, labels) in COUNTERS.items()
            }
        except ValueError as error:  # prometheus-client raises it for a name that is taken
            raise Misuse(
                "this registry already has pyomid's metrics: use one Metrics object for all databases of a process, "
                f"or give another registry ({error})"
            ) from error
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


def outcome(operation: Operation, transaction: Observed) -> str:
    """Return the outcome of a transaction that this operation ended."""
    if transaction.state.name == "COMMITTED":
        return "read" if transaction.commit_ts is None else "committed"
    if transaction.state.name == "UNKNOWN":
        return "unknown"
    return "conflict" if operation.kind is Kind.COMMIT else "rolled_back"


def _tables(error: ConflictError) -> list[str]:
    """Return the tables that the transaction wrote or claimed, because the TSO cannot name the table with the
    conflict."""
    found: dict[str, None] = {}
    for name in ("wrote", "claimed"):
        rows_by_table = error.values.get(name)
        if isinstance(rows_by_table, dict):
            found.update(dict.fromkeys(rows_by_table))
    return list(found)


SYSTEM: Final = "pyomid"


class Spans(Observer):
    """An observer that exports OpenTelemetry spans: `pyomid.connect(url, observers=[Spans()])`. The default of
    `tracer_provider` is OpenTelemetry's global provider. If the program drops a transaction without a commit or
    rollback, the transaction's span never ends and is not exported."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace
        except ModuleNotFoundError as error:
            raise extra_missing("Spans needs the package opentelemetry-api", "tracing") from error
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
            return  # the transaction began before this observer, or ended already
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

    def _end(self, operation: Operation, transaction: Observed, span: Span) -> None:
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
