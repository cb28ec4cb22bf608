"""From events that have arrived, in any order of topics: the shop's transactions that are complete, in its order.

    waiting    events of transactions that are not complete yet: a table, written in the same transaction as the rest
    positions  by topic, the offset up to which events are applied, and the offset of the next BEGIN or END: a table

A transaction is complete when its END has arrived and as many events as the END counts. Debezium writes ENDs in the
order of commits, so the longest run of complete transactions, from the last position on, is a consistent cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from examples.cdc.topics import COLUMNS, KEYS, RECORD, TABLES, TRANSACTIONS
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pyomid.spark import SparkTransaction

RECORD_COLUMNS: Final = ("topic", "partition", "offset", "key", "value")

_VALUE: Final = (
    "op string, before string, after string, source struct<table string, lsn bigint>, "
    "transaction struct<id string, total_order bigint>, status string, id string, event_count bigint"
)

WAITING, POSITIONS, BAD = "cdc_waiting", "cdc_positions", "cdc_bad"


@dataclass(frozen=True, slots=True)
class Landed:
    """What one batch landed."""

    transactions: int
    events: int
    waiting: int
    bad: int


def create_tables(tx: SparkTransaction) -> None:
    for table, columns in COLUMNS.items():
        tx.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}, lsn bigint, PRIMARY KEY ({', '.join(KEYS[table])}))")
    tx.sql(f"CREATE TABLE IF NOT EXISTS {WAITING} ({RECORD}, PRIMARY KEY (topic, partition, offset))")
    tx.sql(
        f"CREATE TABLE IF NOT EXISTS {POSITIONS} (topic string, next bigint, transactions bigint, PRIMARY KEY (topic))"
    )


def land(tx: SparkTransaction, arrived: DataFrame, *, park: bool = False) -> Landed:
    """Apply all transactions that are complete; keep the other events for the next batch.

    A transaction with an event that cannot be applied stops the stream. With `park` its events go to a table instead,
    all of them, and the transactions after it are applied.
    """
    position = {row["topic"]: row for row in tx.read(POSITIONS).collect()}
    begun = position.get(TRANSACTIONS, {"next": 0, "transactions": 0})
    records = arrived.select(*RECORD_COLUMNS).unionByName(tx.read(WAITING))
    events = parsed(records).where(f.col("offset") >= _next(position)).persist()
    try:
        counts = _counts(events)
        complete, next_offset = cut(_limits(events), counts, begun["next"])
        refused = [name for name in counts if counts[name][1]]
        applied = f.broadcast(_named(tx, [name for name, _ in complete]))
        chosen = events.join(applied, "transaction_id", "left_semi")
        good = chosen if not refused else _park(tx, chosen, refused) if park else _refuse(events)
        landed = sum(count for _, count in complete)
        if landed:
            _apply(tx, good)
            _note_positions(tx, chosen, next_offset, begun["transactions"] + len(complete))
        waiting = events.join(applied, "transaction_id", "left_anti").select(*RECORD_COLUMNS)
        left = tx.write(waiting, WAITING, mode="overwrite", duplicates="last").rows
        return Landed(len(complete), landed, left, len(refused))
    finally:
        events.unpersist()


def parsed(records: DataFrame) -> DataFrame:
    """Return the records with the fields of their values, and `reason`: why an event cannot be applied, or null."""
    v = f.from_json("value", _VALUE)
    fields = records.where("value is not null").withColumn("v", v).select(*RECORD_COLUMNS, "v.*")
    row = f.coalesce("after", "before")
    return fields.select(
        *RECORD_COLUMNS,
        "op",
        "status",
        "event_count",
        f.col("source.table").alias("table"),
        f.col("source.lsn").alias("lsn"),
        f.coalesce("transaction.id", "id", f.lit("")).alias("transaction_id"),
        f.col("transaction.total_order").alias("total_order"),
        row.alias("row"),
        _reason(row).alias("reason"),
    )


def _reason(row: Column) -> Column:
    table, names = f.col("source.table"), f.json_object_keys("after")
    known = f.create_map(*(f.lit(x) for t, c in COLUMNS.items() for x in (t, c)))
    columns = f.transform(f.split(known[table], ", "), lambda each: f.split(each, " ")[0])
    return f.when(
        f.col("status").isNull(),
        f.when(f.col("transaction.id").isNull(), "the event names no transaction")
        .when(
            table.isNull() | ~table.isin(*TABLES), f.concat(f.lit("unknown table "), f.coalesce(table, f.lit("null")))
        )
        .when(
            ~f.col("op").isin("c", "r", "u", "d") | f.col("op").isNull(),
            f.concat(f.lit("unknown operation "), f.coalesce("op", f.lit("null"))),
        )
        .when(row.isNull(), "the event has no row")
        .when(
            (f.col("op") != "d") & (f.array_sort(names) != f.array_sort(columns)),
            f.concat(
                f.lit("the table's columns are "),
                f.array_join(columns, ", "),
                f.lit("; the event has "),
                f.array_join(names, ", "),
            ),
        ),
    )


def cut(
    limits: list[dict[str, Any]], counts: dict[str, tuple[int, int]], first: int
) -> tuple[list[tuple[str, int]], int]:
    """Return the complete transactions from offset `first` of the topic of transactions on, with their numbers of
    events, and the offset after the last one."""
    complete, expected, after = [], first, first
    for limit in sorted(limits, key=lambda each: each["offset"]):
        if limit["offset"] < expected:
            continue
        if limit["offset"] > expected:
            break
        expected += 1
        if limit["status"] != "END":
            continue
        found, _ = counts.get(limit["id"], (0, 0))
        if found < limit["event_count"]:
            break
        complete.append((limit["id"], limit["event_count"]))
        after = expected
    return complete, after


def _limits(events: DataFrame) -> list[dict[str, Any]]:
    """Return the BEGINs and ENDs."""
    found = events.where("status is not null").selectExpr("offset", "status", "transaction_id as id", "event_count")
    rows: list[dict[str, Any]] = found.toArrow().to_pylist()
    return rows


def _counts(events: DataFrame) -> dict[str, tuple[int, int]]:
    """Return by transaction: its events that have arrived, and how many of them cannot be applied."""
    of_each = events.where("status is null").groupBy("transaction_id")
    found = of_each.agg(f.countDistinct("total_order").alias("found"), f.count("reason").alias("bad")).toArrow()
    columns = [found.column(name).to_pylist() for name in ("transaction_id", "found", "bad")]
    return {name: (count, bad) for name, count, bad in zip(*columns, strict=True)}


def _named(tx: SparkTransaction, names: list[str]) -> DataFrame:
    return tx.session.createDataFrame(pa.table({"transaction_id": pa.array(names, pa.string())}))


def _next(position: dict[str, Any]) -> Column:
    """Return the offset of the record's topic from which records have not been applied."""
    known = [f.lit(each) for topic, row in position.items() for each in (topic, row["next"])]
    return f.coalesce(f.create_map(*known)[f.col("topic")], f.lit(0)) if known else f.lit(0)


def _apply(tx: SparkTransaction, chosen: DataFrame) -> None:
    for table, columns in COLUMNS.items():
        of_table = chosen.where(f"table = '{table}'").withColumn("r", f.from_json("row", columns))
        position = f.format_string("%s+%d+%d", "topic", "partition", "offset")
        tx.apply_changes(
            of_table.select("r.*", "lsn", "op", "topic", "partition", "offset"),
            table,
            sequence_by="lsn",
            deletes="op = 'd'",
            position=position,
        )


def _refuse(events: DataFrame) -> DataFrame:
    bad = events.where("reason is not null").orderBy("topic", "partition", "offset").first()
    assert bad is not None
    raise ValueError(
        f"the event at {bad['topic']}+{bad['partition']}+{bad['offset']} cannot be applied: {bad['reason']}; nothing "
        "of its batch is landed; correct the source, or park such transactions: --park"
    )


def _park(tx: SparkTransaction, chosen: DataFrame, refused: list[str]) -> DataFrame:
    """Write all events of these transactions to a table of bad changes; return the others."""
    names = f.broadcast(_named(tx, refused))
    columns = ("topic", "partition", "offset", "transaction_id", "reason", "value")
    tx.write(
        chosen.join(names, "transaction_id", "left_semi").select(*columns),
        BAD,
        row_key=["topic", "partition", "offset"],
    )
    return chosen.join(names, "transaction_id", "left_anti")


def _note_positions(tx: SparkTransaction, chosen: DataFrame, next_offset: int, transactions: int) -> None:
    """Note up to where each topic is applied: within a topic, too, transactions stand in the order of their commits."""
    data = chosen.where(f"topic <> '{TRANSACTIONS}'").groupBy("topic").agg(f.max("offset").alias("last")).collect()
    rows = [{"topic": row["topic"], "next": row["last"] + 1, "transactions": transactions} for row in data]
    rows.append({"topic": TRANSACTIONS, "next": next_offset, "transactions": transactions})
    schema = pa.schema([("topic", pa.string()), ("next", pa.int64()), ("transactions", pa.int64())])
    tx.write(pa.Table.from_pylist(rows, schema), POSITIONS)
