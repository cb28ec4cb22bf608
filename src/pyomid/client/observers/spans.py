"""OpenTelemetry spans of a client (extra pyomid[tracing]): one for each transaction, as child of the span that is
current at its begin, with a child for each operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pyomid.client.observers.observer import Kind, Observer, Operation
from pyomid.errors import Misuse, OmidError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from pyomid.client.transaction import RowTransaction

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

    def _end(self, operation: Operation, transaction: RowTransaction[Any], span: Span) -> None:
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
