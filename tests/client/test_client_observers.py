"""What a client tells its observers: the same for both front ends, and nothing that harms a transaction."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import pyomid
import pyomid.aio
from pyomid import observe
from pyomid.database.database import Database
from pyomid.errors import ConflictError, Misuse
from pyomid.observe import Metrics, Observer, Operation, Spans

pytestmark = pytest.mark.fast


class Notes(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def done(self, operation: Operation) -> None:
        self.seen.append((operation.kind.value, operation.table, type(operation.error).__name__))

    def retried(self, error: ConflictError) -> None:
        self.seen.append(("retried", "", type(error).__name__))


def use(url: str, observers: Sequence[Observer]) -> None:
    with pyomid.connect(url, observers=observers) as db:
        with db.begin() as tx:
            table = tx.table("t")
            table.put(b"k", {b"f:a": b"1"})
            assert table.get(b"k")
            assert list(table.scan())
        with pytest.raises(ZeroDivisionError), db.begin():
            raise ZeroDivisionError

        def twice(tx: pyomid.Transaction) -> None:
            tx.table("t").put(b"k", {b"f:a": b"2"})
            if not refused:
                refused.append(tx)
                with db.begin() as other:
                    other.table("t").put(b"k", {b"f:a": b"3"})

        refused: list[pyomid.Transaction] = []
        db.run(twice)


def use_async(url: str, observers: Sequence[Observer]) -> None:
    async def program() -> None:
        async with await pyomid.aio.connect(url, observers=observers) as db:
            async with db.begin() as tx:
                table = await tx.table("t")
                await table.put(b"k", {b"f:a": b"1"})
                assert await table.get(b"k")
                assert [row async for row in table.scan()]
            with pytest.raises(ZeroDivisionError):
                async with db.begin():
                    raise ZeroDivisionError

            async def twice(tx: pyomid.aio.AsyncTransaction) -> None:
                await (await tx.table("t")).put(b"k", {b"f:a": b"2"})
                if not refused:
                    refused.append(tx)
                    async with db.begin() as other:
                        await (await other.table("t")).put(b"k", {b"f:a": b"3"})

            refused: list[pyomid.aio.AsyncTransaction] = []
            await db.run(twice)

    asyncio.run(program())


ALL_FRONT_ENDS = pytest.mark.parametrize("front_end", [use, use_async])


@ALL_FRONT_ENDS
def test_both_front_ends_report_the_same(memory_db: Database, front_end: type) -> None:
    notes = Notes()
    front_end(memory_db.url, [notes])
    assert notes.seen == [
        *[("begin", "", "NoneType"), ("read", "t", "NoneType"), *[("scan", "t", "NoneType")] * 2],
        *[("commit", "", "NoneType"), ("begin", "", "NoneType"), ("rollback", "", "NoneType")],
        *[("begin", "", "NoneType"), ("begin", "", "NoneType"), ("commit", "", "NoneType")],
        *[("commit", "", "ConflictError"), ("retried", "", "ConflictError")],
        *[("begin", "", "NoneType"), ("commit", "", "NoneType")],
    ]


@ALL_FRONT_ENDS
def test_metrics_count_outcomes_and_conflicts_by_table(memory_db: Database, front_end: type) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    front_end(memory_db.url, [metrics])

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"pyomid_client_{name}", labels)

    assert value("transactions_total", outcome="committed") == 3
    assert value("transactions_total", outcome="rolled_back") == 1
    assert value("transactions_total", outcome="conflict") == 1
    assert value("conflicts_total", table="t") == value("retries_total") == 1
    assert value("errors_total", operation="commit", error="OMID-CONFLICT") == 1
    assert value("operation_seconds_count", operation="begin") == 5
    assert value("open_transactions") == 0
    with pyomid.connect(memory_db.url, observers=[metrics]) as db:
        forgotten = db.begin()
        assert value("open_transactions") == 1
        ended = db.begin()
        ended.rollback()
        ended.rollback()
        del forgotten
        gc.collect()
        assert value("open_transactions") == 0
    assert value("transactions_total", outcome="rolled_back") == 2


@ALL_FRONT_ENDS
def test_spans_of_operations_lie_below_their_transaction(memory_db: Database, front_end: type) -> None:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("request") as request:
        front_end(memory_db.url, [Spans(provider)])
    spans = exporter.get_finished_spans()
    transactions = {span.context.span_id: span for span in spans if span.name == "pyomid transaction"}
    assert len(transactions) == 5
    assert {_parent(span) for span in transactions.values()} == {request.get_span_context().span_id}
    below = [span for span in spans if _parent(span) in transactions]
    assert [span.name for span in below][:3] == ["pyomid begin", "pyomid read t", "pyomid scan t"]
    assert len(below) == len(spans) - len(transactions) - 1
    failed = [span for span in below if not span.status.is_ok and span.attributes and "error.type" in span.attributes]
    assert [(span.name, (span.attributes or {})["error.type"]) for span in failed] == [
        ("pyomid commit", "OMID-CONFLICT")
    ]


def _parent(span: ReadableSpan) -> int:
    return 0 if span.parent is None else span.parent.span_id


def test_an_observer_that_fails_harms_no_transaction(memory_db: Database, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Observer):
        def done(self, operation: Operation) -> None:
            raise ValueError("observer")

        def retried(self, error: ConflictError) -> None:
            raise ValueError("observer")

    notes = Notes()
    with caplog.at_level(logging.WARNING):
        use(memory_db.url, [Failing(), notes])
    assert len(notes.seen) == 14
    assert len([record for record in caplog.records if "does not log its further errors" in record.message]) == 1


def test_a_report_that_cannot_be_made_harms_no_transaction(
    memory_url: str, memory_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object) -> Operation:
        raise MemoryError

    monkeypatch.setattr(observe, "Operation", lacking)
    use(memory_url, [Notes()])


def test_a_second_metrics_in_one_registry_is_refused_with_the_way_out() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    with pytest.raises(Misuse, match="use one Metrics object for all databases"):
        Metrics(registry)
