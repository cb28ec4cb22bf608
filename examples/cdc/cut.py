"""From events that have arrived, in any order of topics: the shop's transactions that are complete, in its order.

    waiting    events of transactions that are not complete yet: a table, written in the same transaction as the rest
    positions  by topic and partition, the offset up to which events are applied, and that of the next BEGIN or END: a
               table
    landed     the last transactions that were applied: Debezium publishes some of them again after a crash

Debezium names a transaction alike in BEGIN, END and each event, except for PostgreSQL: there the id is the number of
the transaction, which comes again after 2³² transactions, and the log position of that one record. So the number names
the transaction here, and the position of its END tells it from an earlier one of the same number.

A transaction is complete when its END has arrived and as many events as the END counts. Debezium writes ENDs in the
order of commits, so the longest run of complete transactions, from the last position on, is a consistent cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import pyarrow as pa
from examples.cdc.topics import COLUMNS, KEYS, RECORD, TABLES, TRANSACTIONS
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pyomid.spark import SparkTransaction

RECORD_COLUMNS: Final = ("topic", "partition", "offset", "key", "value")

_VALUE: Final = (
    "op string, before map<string, string>, after map<string, string>, source struct<table string, lsn bigint>, "
    "transaction struct<id string, total_order bigint>, status string, id string, event_count bigint"
)

WAITING, POSITIONS, LANDED, BAD = "cdc_waiting", "cdc_positions", "cdc_landed", "cdc_bad"

LANDED_KEPT: Final = 100_000
"""The size of the table `LANDED`: more transactions than Debezium publishes between two flushes of its offsets."""

_NUMBERED: Final = "^[0-9]+:[0-9]+$"
"""PostgreSQL's id: a transaction's number, and a position in its log."""

NO_TRANSACTION: Final = ""
"""The transaction of an event that names none: such an event is always bad, and waits for no END."""


class Count(NamedTuple):
    """The events of a transaction that have arrived: how many, how many of them cannot be applied, and their greatest
    position in the log, 0 if their ids have none."""

    found: int
    bad: int
    lsn: int = 0


NO_EVENTS: Final = Count(0, 0)


def landed_of(names: Iterable[str]) -> dict[str, int]:
    """Return the noted transactions by name, with the log position of the END, 0 if their ids have none."""
    split = (name.split(":") if re.match(_NUMBERED, name) else (name, "0") for name in names)
    found: dict[str, int] = {}
    for name, lsn in split:
        found[name] = max(int(lsn), found.get(name, 0))
    return found


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
    position = "topic string, partition int, next bigint, transactions bigint, PRIMARY KEY (topic, partition)"
    tx.sql(f"CREATE TABLE IF NOT EXISTS {POSITIONS} ({position})")
    tx.sql(f"CREATE TABLE IF NOT EXISTS {LANDED} (place bigint, transaction_id string, PRIMARY KEY (place))")


def land(tx: SparkTransaction, arrived: DataFrame, *, park: bool = False) -> Landed:
    """Apply all transactions that are complete; keep the other events for the next batch.

    A transaction with an event that cannot be applied stops the stream. With `park` its events go to a table instead,
    all of them, and the transactions after it are applied. A bad BEGIN or END stops the stream in any case.
    """
    position = {(row["topic"], row["partition"]): row for row in tx.read(POSITIONS).collect()}
    begun = position.get((TRANSACTIONS, 0), {"next": 0, "transactions": 0})
    records = arrived.select(*RECORD_COLUMNS).unionByName(tx.read(WAITING))
    landed = landed_of(tx.read(LANDED).select("transaction_id").toArrow()["transaction_id"].to_pylist())
    arrived_events = parsed(records).where(f.coalesce(f.col("offset") >= _next(position), f.lit(True))).persist()
    try:
        limits, counts = _limits(arrived_events), _counts(arrived_events)
        again = [name for name, count in counts.items() if count.lsn <= landed.get(name, -1)]
        events = _without(arrived_events, _named(tx, again)) if again else arrived_events
        refused = [name for name, count in counts.items() if count.bad and name not in again]
        if any(limit["reason"] for limit in limits) or (refused and not park):
            _refuse(events)
        complete, next_offset = cut(limits, counts, begun["next"], landed)
        done = [name for name, _ in complete]
        taken = {NO_TRANSACTION, *done}
        refused = [name for name in refused if name in taken]
        applied = _named(tx, [*taken])
        chosen = events.join(f.broadcast(applied), "transaction_id", "left_semi")
        good = _park(tx, chosen, refused) if refused else chosen
        if complete:
            _apply(tx, good)
            _note_positions(tx, chosen, next_offset, begun["transactions"] + len(complete))
            ends = {limit["id"]: limit["lsn"] for limit in limits if limit["status"] == "END"}
            _note_landed(tx, [f"{name}:{ends[name]}" if ends[name] else name for name in done], begun["transactions"])
        waiting = _without(events, applied).where(~_is_limit() | (f.col("offset") >= next_offset))
        left = tx.write(waiting.select(*RECORD_COLUMNS), WAITING, mode="overwrite", duplicates="last").rows
        return Landed(len(complete), sum(count for _, count in complete), left, len(refused))
    finally:
        arrived_events.unpersist()


def parsed(records: DataFrame) -> DataFrame:
    """Return the records with the fields of their values, one column per table with the event's row, and `reason`: why
    an event cannot be applied, or null."""
    read = records.where("value is not null").withColumn("v", f.from_json("value", _VALUE))
    name = f.when(f.col("topic") == TRANSACTIONS, f.col("v.id")).otherwise(f.col("v.transaction.id"))
    fields = read.select(
        *RECORD_COLUMNS,
        *("v.op", "v.status", "v.event_count", "v.source.table", "v.source.lsn", "v.transaction.total_order"),
        f.coalesce(f.when(name.rlike(_NUMBERED), f.split(name, ":")[0]), name, f.lit(NO_TRANSACTION)).alias(
            "transaction_id"
        ),
        f.when(name.rlike(_NUMBERED), f.split(name, ":")[1].cast("bigint")).alias("at_lsn"),
        f.when(f.col("v.op") == "d", f.col("v.before")).otherwise(f.col("v.after")).alias("values"),
    )
    rows = fields.withColumns({t: f.when(f.col("table") == t, _typed(t)) for t in TABLES})
    reason = f.when(f.col("topic") == TRANSACTIONS, _reason_of_limit()).otherwise(_reason_of_change())
    return rows.withColumn("reason", reason).drop("values")


def _typed(table: str) -> Column:
    """Return the event's row as the table has it; a column that does not fit its type is null."""
    return f.struct(*(f.col("values")[name].try_cast(kind).alias(name) for name, kind in _columns(table)))


def _columns(table: str) -> list[list[str]]:
    """Return the names and types of a table's columns."""
    return [column.split(" ") for column in COLUMNS[table].split(", ")]


def _reason_of_limit() -> Column:
    is_good = "partition = 0 and transaction_id <> '' and (status = 'BEGIN' or status = 'END' and event_count >= 0)"
    return f.when(
        ~f.coalesce(f.expr(is_good), f.lit(False)), "it is not a BEGIN or END in partition 0 with an id and a count"
    )


def _reason_of_change() -> Column:
    table, op = f.col("table"), f.col("op")
    return f.coalesce(
        f.when(f.expr("topic is null or partition is null or offset is null"), "the record has no place in a topic"),
        f.when(
            f.expr("transaction_id = '' or total_order is null"), "the event names no transaction, or no place in it"
        ),
        f.when(table.isNull() | ~table.isin(*TABLES), f.format_string("unknown table %s", table)),
        f.when(op.isNull() | ~op.isin("c", "r", "u", "d"), f.format_string("unknown operation %s", op)),
        f.when(f.col("values").isNull(), "the event has no row"),
        f.when(f.col("lsn").isNull(), "the event has no lsn"),
        *(f.when(table == name, _reason_of_row(name)) for name in TABLES),
    )


def _reason_of_row(table: str) -> Column:
    """Return why a row does not fit its table; a delete needs only the key."""
    columns, keys = _columns(table), KEYS[table]
    only = keys if len(keys) == 1 else ()  # then an empty text is an empty row key
    names, found = [name for name, _ in columns], f.map_keys("values")
    differs = f.sort_array(found) != f.sort_array(f.array(*map(f.lit, names)))
    expected = f"the table's columns are {', '.join(names)}; the event has %s"
    return f.coalesce(
        f.when((f.col("op") != "d") & differs, f.format_string(expected, f.array_join(found, ", "))),
        *(
            f.when(
                f.col(f"{table}.{name}").isNull() & f.col("values")[name].isNotNull(),
                f.format_string(f"column '{name}' is {kind}; the event has %s", f.col("values")[name]),
            )
            for name, kind in columns
        ),
        *(f.when(f.col(f"{table}.{name}").isNull(), f"column '{name}' is null") for name in keys),
        *(f.when(f.col(f"{table}.{name}").cast("string") == "", f"column '{name}' is empty") for name in only),
    )


def cut(
    limits: list[dict[str, Any]],
    counts: Mapping[str, Count],
    first: int,
    landed: Mapping[str, int] = MappingProxyType({}),
) -> tuple[list[tuple[str, int]], int]:
    """Return the complete transactions from offset `first` of the topic of transactions on, with their numbers of
    events, and the offset after the last one. A transaction that has `landed` is passed."""
    complete, expected, after, passed = [], first, first, set[str]()
    for limit in sorted(limits, key=lambda each: each["offset"]):
        if limit["offset"] < expected:
            continue
        if limit["offset"] > expected:
            break
        expected += 1
        has_landed = (limit.get("lsn") or 0) <= landed.get(limit["id"], -1)
        if limit["status"] != "END" or limit["id"] in passed or has_landed:
            continue
        found = counts.get(limit["id"], NO_EVENTS).found
        if found > limit["event_count"]:
            raise ValueError(
                f"transaction {limit['id']} has {found} events, and its END counts {limit['event_count']}; nothing of "
                "its batch is landed; correct the source"
            )
        if found < limit["event_count"]:
            break
        complete.append((limit["id"], limit["event_count"]))
        passed.add(limit["id"])
        after = expected
    return complete, after


def _limits(events: DataFrame) -> list[dict[str, Any]]:
    """Return the BEGINs and ENDs."""
    found = events.where(f.col("topic") == TRANSACTIONS)
    limits = found.selectExpr("offset", "status", "transaction_id as id", "at_lsn as lsn", "event_count", "reason")
    rows: list[dict[str, Any]] = limits.toArrow().to_pylist()
    return rows


def _counts(events: DataFrame) -> dict[str, Count]:
    """Return by transaction: its events that have arrived, and how many of them cannot be applied."""
    of_each = events.where(~_is_limit()).groupBy("transaction_id")
    place = f.coalesce("total_order", f.xxhash64("topic", "partition", "offset"))  # a bad event may have no order
    bad, lsn = f.count("reason").alias("bad"), f.max("at_lsn").alias("lsn")
    found = of_each.agg(f.countDistinct(place).alias("found"), bad, lsn).toArrow().to_pylist()
    return {each["transaction_id"]: Count(each["found"], each["bad"], each["lsn"] or 0) for each in found}


def _named(tx: SparkTransaction, names: list[str]) -> DataFrame:
    return tx.session.createDataFrame(pa.table({"transaction_id": pa.array(names, pa.string())}))


def _is_limit() -> Column:
    return f.col("topic").eqNullSafe(TRANSACTIONS)


def _without(events: DataFrame, names: DataFrame) -> DataFrame:
    """Return the events without those of these transactions; BEGINs and ENDs stay, since their offsets are counted."""
    is_of_one = (events["transaction_id"] == names["transaction_id"]) & ~_is_limit()
    return events.join(f.broadcast(names), is_of_one, "left_anti")


def _next(position: dict[tuple[str, int], Any]) -> Column:
    """Return the offset of the record's partition from which records have not been applied."""
    known = [f.lit(x) for (topic, part), row in position.items() for x in (f"{topic}+{part}", row["next"])]
    return f.coalesce(f.create_map(*known)[_place("topic", "partition")], f.lit(0)) if known else f.lit(0)


def _place(*columns: str) -> Column:
    return f.concat_ws("+", *(f.col(name).cast("string") for name in columns))


def _apply(tx: SparkTransaction, chosen: DataFrame) -> None:
    for table in COLUMNS:
        tx.apply_changes(
            chosen.where(f"table = '{table}'").select(f"{table}.*", "lsn", "op", "topic", "partition", "offset"),
            table,
            sequence_by="lsn",
            deletes="op = 'd'",
            position=_place("topic", "partition", "offset"),
        )


def _refuse(events: DataFrame) -> NoReturn:
    limits_first = f.desc(f.col("topic") == TRANSACTIONS)
    bad = events.where("reason is not null").orderBy(limits_first, "topic", "partition", "offset").first()
    assert bad is not None
    otherwise = "" if bad["topic"] == TRANSACTIONS else ", or park such transactions: --park"
    raise ValueError(
        f"the event at {bad['topic']}+{bad['partition']}+{bad['offset']} cannot be applied: {bad['reason']}; nothing "
        f"of its batch is landed; correct the source{otherwise}"
    )


def _park(tx: SparkTransaction, chosen: DataFrame, refused: list[str]) -> DataFrame:
    """Write all events of these transactions to a table of bad changes; return the others."""
    names = f.broadcast(_named(tx, refused))
    columns = ("topic", "partition", "offset", "transaction_id", "reason", "value")
    tx.write(
        chosen.join(names, "transaction_id", "left_semi").select(*columns),
        BAD,
        row_key=["topic", "partition", "offset"],
        duplicates="last",
    )
    return chosen.join(names, "transaction_id", "left_anti")


def _note_positions(tx: SparkTransaction, chosen: DataFrame, next_offset: int, transactions: int) -> None:
    """Note up to where each partition is applied: there, too, transactions stand in the order of their commits."""
    landed = chosen.where(~_is_limit() & (f.col("transaction_id") != NO_TRANSACTION))
    last = landed.groupBy("topic", "partition").agg((f.max("offset") + 1).alias("next")).collect()
    rows = [row.asDict() for row in last] + [{"topic": TRANSACTIONS, "partition": 0, "next": next_offset}]
    names = ("topic", "partition", "next", "transactions")
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64())
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    tx.write(pa.Table.from_pylist([{**row, "transactions": transactions} for row in rows], schema), POSITIONS)


def _note_landed(tx: SparkTransaction, names: list[str], before: int) -> None:
    """Note these transactions in place of the oldest ones. `before`: how many landed before them."""
    places = {(before + number) % LANDED_KEPT: name for number, name in enumerate(names)}
    kinds = [pa.array(places, pa.int64()), pa.array(places.values(), pa.string())]
    tx.write(pa.table(kinds, ["place", "transaction_id"]), LANDED)
