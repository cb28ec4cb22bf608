"""From events that have arrived, in any order of topics: the shop's transactions that are complete, in its order.

    waiting    events of transactions that are not complete yet: a table, written in the same transaction as the rest
    positions  by topic and partition, the offset up to which events are applied, and that of the next BEGIN or END: a
               table
    landed     the last transactions that were applied: Debezium publishes some of them again after a crash

A transaction is complete when its END has arrived and as many events as the END counts. Debezium writes ENDs in the
order of commits, so the longest run of complete transactions, from the last position on, is a consistent cut.

Debezium's connectors give BEGIN, END and events of one transaction the same id, except PostgreSQL's since version 2.1.
Its ids are `xid:lsn`, with the log position of that one record, and PostgreSQL uses each xid again after 2³²
transactions. The id of the END names such a transaction; an event belongs to the END with its xid if the event's lsn is
between those of BEGIN and END.

A change's sequence is its log position if the source has one, else its offset: the changes of one row are in one
partition, in the order of their commits.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import pyarrow as pa
from examples.cdc.topics import COLUMNS, KEYS, RECORD, SIGNALS, TABLES, TRANSACTIONS
from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pyomid.spark import SparkTransaction

RECORD_COLUMNS: Final = ("topic", "partition", "offset", "key", "value")

_VALUE: Final = (
    "op string, before map<string, string>, after map<string, string>, "
    "source struct<connector string, table string, lsn string>, transaction struct<id string, total_order string>, "
    "status string, id string, event_count string, ts_ms string, databaseName string"
)
"""Numbers are texts here: some converters write them in quotes."""

WAITING, POSITIONS, LANDED, BAD = "cdc_waiting", "cdc_positions", "cdc_landed", "cdc_bad"

LANDED_KEPT: Final = 100_000
"""The size of the table `LANDED`: more transactions than Debezium publishes between two flushes of its offsets."""

NO_TRANSACTION: Final = ""
"""The transaction of an event that names none, such as those of a snapshot."""

_XID_LSN: Final = "^([0-9]+):([0-9]{1,18})$"

_UNAVAILABLE: Final = "__debezium_unavailable_value"
_UNAVAILABLE_BASE64: Final = base64.b64encode(_UNAVAILABLE.encode()).decode()
_UNAVAILABLE_FORMS: Final = (
    *(_UNAVAILABLE, _UNAVAILABLE_BASE64, _UNAVAILABLE.encode().hex()),
    *(f'["{_UNAVAILABLE}"]', f'["{_UNAVAILABLE_BASE64}"]', json.dumps([*_UNAVAILABLE.encode()], separators=(",", ":"))),
    f'["{uuid.UUID(bytes=hashlib.md5(_UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3)}"]',
    f'{{"{_UNAVAILABLE}":"{_UNAVAILABLE}"}}',
)
"""What a connector publishes in place of a large value that an update left as it was: as text, as bytes, as an array of
texts, bytes, numbers or UUIDs, and as hstore."""


@dataclass(frozen=True, slots=True)
class Landed:
    """What one batch landed. `waits_for`: what the events that are left wait for; empty if none is left."""

    transactions: int
    events: int
    waiting: int
    bad: int
    waits_for: str = ""


class Cut(NamedTuple):
    """Complete transactions with their numbers of events, the offset after the last one's END, and what the next
    transaction waits for."""

    complete: list[tuple[str, int]]
    next_offset: int
    waits_for: str


class Span(NamedTuple):
    """The events of a transaction of PostgreSQL: those with this xid and an lsn in this range."""

    xid: str
    first: int
    last: int


def create_tables(tx: SparkTransaction) -> None:
    for table, columns in COLUMNS.items():
        tx.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}, lsn bigint, PRIMARY KEY ({', '.join(KEYS[table])}))")
    tx.sql(f"CREATE TABLE IF NOT EXISTS {WAITING} ({RECORD}, PRIMARY KEY (topic, partition, offset))")
    position = "topic string, partition int, next bigint, transactions bigint, PRIMARY KEY (topic, partition)"
    tx.sql(f"CREATE TABLE IF NOT EXISTS {POSITIONS} ({position})")
    tx.sql(
        f"CREATE TABLE IF NOT EXISTS {LANDED} (place bigint, transaction_id string, first bigint, PRIMARY KEY (place))"
    )


def land(tx: SparkTransaction, arrived: DataFrame, *, park: bool = False) -> Landed:
    """Apply all transactions that are complete; keep the other events for the next batch.

    A transaction with an event that cannot be applied stops the stream. With `park` its events go to a table instead,
    all of them, and the transactions after it are applied. A bad BEGIN or END stops the stream in any case.
    """
    position = {(row["topic"], row["partition"]): row for row in tx.read(POSITIONS).collect()}
    begun = position.get((TRANSACTIONS, 0), {"next": 0, "transactions": 0})
    records = arrived.select(*RECORD_COLUMNS).unionByName(tx.read(WAITING))
    landed = {row["transaction_id"]: row["first"] for row in tx.read(LANDED).toArrow().to_pylist()}
    is_new = f.col("offset") >= _by_partition({place: row["next"] for place, row in position.items()}, 0)
    arrived_events = parsed(tx, records).where(f.coalesce(is_new, f.lit(True))).persist()
    try:
        limits = _limits(arrived_events)
        found = spans(limits, landed)
        named = _named_by_end(tx, arrived_events, found)
        counts = _counts(named)
        again = [name for name in counts if name in landed]
        events = _without(named, _named(tx, again)) if again else named
        refused = [name for name in counts if counts[name][1] and name not in landed]
        if any(limit["reason"] for limit in limits) or (refused and not park):
            _refuse(events)
        ready = cut(limits, counts, begun["next"], landed)
        done = [name for name, _ in ready.complete]
        taken = {NO_TRANSACTION, *done}
        refused = [name for name in refused if name in taken]
        applied = _named(tx, [*taken])
        chosen = events.join(f.broadcast(applied), "transaction_id", "left_semi")
        waiting = _without(events, applied).where(~_is_limit() | (f.col("offset") >= ready.next_offset))
        if NO_TRANSACTION in counts:
            is_early = _is_early(waiting)
            chosen, waiting = chosen.where(~is_early), waiting.unionByName(events.where(is_early & ~_is_limit()))
        good = _park(tx, chosen, refused) if refused else chosen
        events_applied = 0
        if done or NO_TRANSACTION in counts:
            events_applied = _apply(tx, _first_copies(good))
            _note_positions(tx, chosen, ready.next_offset, begun["transactions"] + len(done))
            _note_landed(tx, {name: found[name].first if name in found else 0 for name in done}, begun["transactions"])
        left = tx.write(waiting.select(*RECORD_COLUMNS), WAITING, mode="overwrite", duplicates="last").rows
        without_end = min((name for name in counts if name not in taken and name not in landed), default="")
        waits_for = ready.waits_for or (without_end and f"transaction {without_end} has no END")
        return Landed(len(done), events_applied, left, len(refused), waits_for)
    finally:
        arrived_events.unpersist()


def parsed(tx: SparkTransaction, records: DataFrame) -> DataFrame:
    """Return the records with the fields of their values, one column per table with the event's row, and `reason`: why
    an event cannot be applied, or null. Tombstones, heartbeats and changes of a schema are left out."""
    read = records.withColumn("v", f.from_json(_payload("value"), _VALUE))
    is_change = f.expr("v.op is not null or v.databaseName is null and (v.source is not null or v.ts_ms is null)")
    name = f.coalesce(f.when(_is_limit(), f.col("v.id")).otherwise(f.col("v.transaction.id")), f.lit(NO_TRANSACTION))
    key = f.from_json(_payload("key"), "map<string, string>")
    values = f.when(f.col("v.op") == "d", f.coalesce("v.before", key)).otherwise(f.col("v.after"))
    fields = read.where(_is_limit() | f.col("v").isNotNull() & is_change).select(
        *RECORD_COLUMNS,
        *("v.op", "v.status", "v.source.table", "v.source.connector"),
        f.expr("try_cast(v.event_count as bigint)").alias("event_count"),
        f.expr("try_cast(v.transaction.total_order as bigint)").alias("total_order"),
        f.expr("try_cast(v.source.lsn as bigint)").alias("source_lsn"),
        name.alias("transaction_id"),
        f.when(name.rlike(_XID_LSN), f.split_part(name, f.lit(":"), f.lit(1))).alias("xid"),
        f.when(name.rlike(_XID_LSN), f.split_part(name, f.lit(":"), f.lit(2)).cast("bigint")).alias("at"),
        values.alias("values"),
        f.xxhash64(f.to_json(f.struct("v.op", "v.source", "key", values.alias("values")))).alias("content"),
        f.map_keys(f.map_filter(values, lambda _, value: value.isin(*_UNAVAILABLE_FORMS))).alias("unchanged"),
    )
    rows = fields.withColumns({t: f.when(f.col("table") == t, _typed(t)) for t in TABLES})
    reason = f.when(_is_limit(), _reason_of_limit()).otherwise(_reason_of_change(tx))
    return rows.withColumns({"reason": reason, "lsn": f.coalesce("source_lsn", "offset")}).drop("values")


def _payload(name: str) -> Column:
    """Return the text of a key or value without its schema: a setting of Kafka's converters adds one."""
    has_schema = f.col(name).rlike(r'^\s*\{\s*"(schema|payload)"\s*:')
    return f.when(has_schema, f.get_json_object(name, "$.payload")).otherwise(f.col(name))


def _typed(table: str) -> Column:
    """Return the event's row as the table has it; a column that does not fit its type is null."""
    return f.struct(*(f.col("values")[name].try_cast(kind).alias(name) for name, kind in _columns(table)))


def _columns(table: str) -> list[list[str]]:
    """Return the names and types of a table's columns."""
    return [column.split(" ") for column in COLUMNS[table].split(", ")]


def _reason_of_limit() -> Column:
    is_good = "partition = 0 and transaction_id <> '' and (status = 'BEGIN' or status = 'END' and event_count >= 0)"
    return f.when(
        f.col("value").isNotNull() & ~f.coalesce(f.expr(is_good), f.lit(False)),
        "it is not a BEGIN or END in partition 0 with an id and a count",
    )


def _reason_of_change(tx: SparkTransaction) -> Column:
    op = f.col("op")
    is_free = f.expr("transaction_id = '' and op in ('r', 't', 'm')")  # of a snapshot, or where a source has no other
    return f.coalesce(
        f.when(f.expr("topic is null or partition is null or offset is null"), "the record has no place in a topic"),
        f.when(op.isNull() | ~op.isin("c", "r", "u", "d", "t", "m"), f.format_string("unknown operation %s", op)),
        f.when(
            ~is_free & f.expr("transaction_id = '' or total_order is null"),
            "the event names no transaction, or no place in it",
        ),
        f.when((op != "m") & ~f.col("table").eqNullSafe(SIGNALS), _reason_of_table(tx)),
    )


def _reason_of_table(tx: SparkTransaction) -> Column:
    table = f.col("table")
    rows = f.coalesce(
        f.when(f.col("values").isNull(), "the event has no row"),
        *(f.when(table == t, _reason_of_row(tx, t)) for t in TABLES),
    )
    return f.coalesce(
        f.when(table.isNull() | ~table.isin(*TABLES), f.format_string("unknown table %s", table)),
        f.when(f.expr("connector = 'postgresql' and op <> 'r' and source_lsn is null"), "the event has no lsn"),
        f.when(f.col("op") != "t", rows),
    )


def _reason_of_row(tx: SparkTransaction, table: str) -> Column:
    """Return why a row does not fit its table; a delete needs only the key."""
    columns, keys = _columns(table), KEYS[table]
    names, found = [name for name, _ in columns], f.map_keys("values")
    differs = f.sort_array(found) != f.sort_array(f.array(*map(f.lit, names)))
    expected = f"the table's columns are {', '.join(names)}; the event has %s"
    return f.coalesce(
        f.when((f.col("op") != "d") & differs, f.format_string(expected, f.array_join(found, ", "))),
        *(
            f.when(
                f.expr(f"{table}.{name} is null and values['{name}'] is not null and not {_is_unchanged(name)}"),
                f.format_string(f"column '{name}' is {kind}; the event has %s", f.col("values")[name]),
            )
            for name, kind in columns
        ),
        *(f.when(f.expr(_is_unchanged(name)), f"column '{name}' is null") for name in keys),
        tx.why_bad(table, table),
        f.when(
            f.expr("op in ('c', 'r') and size(unchanged) > 0"),
            f.format_string("the event makes a row, and leaves out its column '%s'", f.col("unchanged")[0]),
        ),
    )


def _is_unchanged(name: str) -> str:
    return f"array_contains(unchanged, '{name}')"


def spans(limits: list[dict[str, Any]], landed: Mapping[str, int]) -> dict[str, Span]:
    """Return the transactions of PostgreSQL by the ids of their ENDs. `landed`: the first lsn of those that landed."""
    begun: dict[str, int] = {}
    firsts = dict(landed)
    for limit in sorted(limits, key=lambda each: each["offset"]):
        if limit["status"] == "BEGIN" and limit["xid"]:
            begun[limit["xid"]] = limit["at"]
        elif limit["status"] == "END" and limit["xid"]:
            firsts.setdefault(limit["id"], begun.pop(limit["xid"], 0))
    ends = (match for name in firsts if (match := re.match(_XID_LSN, name)))
    found: dict[str, Span] = {}
    last: dict[str, int] = {}
    for end in sorted(ends, key=lambda match: int(match[2])):
        xid, lsn = end[1], int(end[2])
        found[end[0]] = Span(xid, max(firsts[end[0]], last.get(xid, -1) + 1), lsn)
        last[xid] = lsn
    return found


def cut(
    limits: list[dict[str, Any]], counts: Mapping[str, tuple[int, int]], first: int, landed: Container[str] = ()
) -> Cut:
    """Return the complete transactions from offset `first` of the topic of transactions on. A transaction that has
    `landed` is passed. One whose END has not arrived holds up those that end after its BEGIN."""
    complete, expected, after, waits_for = [], first, first, ""
    passed: set[str] = set()
    by_offset = sorted(limits, key=lambda each: each["offset"])
    last_end = {_number(limit): limit["offset"] for limit in by_offset if limit["status"] == "END"}
    for limit in by_offset:
        if limit["offset"] < expected:
            continue
        if limit["offset"] > expected:
            waits_for = f"{TRANSACTIONS}+0+{expected} has not arrived, and {TRANSACTIONS}+0+{limit['offset']} has"
            break
        expected += 1
        if limit["status"] == "BEGIN" and last_end.get(_number(limit), -1) < limit["offset"]:
            waits_for = waits_for or f"transaction {limit['id']} has no END"
        if limit["status"] != "END":
            continue
        if limit["id"] in passed or limit["id"] in landed:
            continue
        if waits_for:
            break
        found, _ = counts.get(limit["id"], (0, 0))
        if found > limit["event_count"]:
            raise ValueError(
                f"transaction {limit['id']} has {found} events, and its END counts {limit['event_count']}; nothing of "
                "its batch is landed; correct the source"
            )
        if found < limit["event_count"]:
            waits_for = f"transaction {limit['id']} has {found} of its {limit['event_count']} events"
            break
        complete.append((limit["id"], limit["event_count"]))
        passed.add(limit["id"])
        after = expected
    return Cut(complete, after, waits_for)


def _number(limit: dict[str, Any]) -> str:
    """Return what BEGIN and END of one transaction have in common."""
    return str(limit.get("xid") or limit["id"])


def _limits(events: DataFrame) -> list[dict[str, Any]]:
    """Return the BEGINs and ENDs."""
    found = events.where(_is_limit())
    limits = found.selectExpr("offset", "status", "transaction_id as id", "xid", "at", "event_count", "reason")
    rows: list[dict[str, Any]] = limits.toArrow().to_pylist()
    return rows


def _named_by_end(tx: SparkTransaction, events: DataFrame, found: Mapping[str, Span]) -> DataFrame:
    """Return the events with the ids of their transactions' ENDs, where those have arrived."""
    if not found:
        return events
    rows = [{"end": name, "end_xid": span.xid, "first": span.first, "last": span.last} for name, span in found.items()]
    ends = tx.session.createDataFrame(pa.Table.from_pylist(rows))
    is_of = (f.col("xid") == f.col("end_xid")) & f.col("at").between(f.col("first"), f.col("last")) & ~_is_limit()
    joined = events.join(f.broadcast(ends), is_of, "left")
    return joined.withColumn("transaction_id", f.coalesce("end", "transaction_id")).drop(*ends.columns)


def _counts(events: DataFrame) -> dict[str, tuple[int, int]]:
    """Return by transaction: its events that have arrived, and how many of them cannot be applied."""
    of_each = events.where(~_is_limit()).groupBy("transaction_id")
    found = of_each.agg(f.countDistinct(_order()).alias("found"), f.count("reason").alias("bad")).toArrow()
    columns = [found.column(name).to_pylist() for name in ("transaction_id", "found", "bad")]
    return {name: (count, bad) for name, count, bad in zip(*columns, strict=True)}


def _order() -> Column:
    """Return what is the same for copies of one event of a transaction, and for no other. Copies of a bad event that
    has no order have the same content; an event without a transaction has no copies."""
    of_place = f.when(f.col("transaction_id") == NO_TRANSACTION, f.struct("topic", "partition", "offset"))
    of_content = f.when(f.isnull("total_order") & of_place.isNull(), f.struct("topic", "content"))
    return f.struct(f.when(of_place.isNull(), f.col("total_order")), of_place, of_content)


def _first_copies(events: DataFrame) -> DataFrame:
    """Return the events without those that Debezium published again: by their offsets these are newer than changes that
    came after the first copy."""
    copies = Window.partitionBy("transaction_id", _order()).orderBy("offset")
    return events.withColumn("copy", f.row_number().over(copies)).where("copy = 1").drop("copy")


def _named(tx: SparkTransaction, names: list[str]) -> DataFrame:
    return tx.session.createDataFrame(pa.table({"transaction_id": pa.array(names, pa.string())}))


def _is_limit() -> Column:
    return f.col("topic").eqNullSafe(TRANSACTIONS)


def _without(events: DataFrame, names: DataFrame) -> DataFrame:
    """Return the events without those of these transactions; BEGINs and ENDs stay, since their offsets are counted."""
    is_of_one = (events["transaction_id"] == names["transaction_id"]) & ~_is_limit()
    return events.join(f.broadcast(names), is_of_one, "left_anti")


def _is_early(waiting: DataFrame) -> Column:
    """Whether an event that names no transaction must wait, since an earlier one of its partition does."""
    first = waiting.where(~_is_limit()).groupBy("topic", "partition").agg(f.min("offset").alias("first")).collect()
    firsts = {(row["topic"], row["partition"]): row["first"] for row in first}
    return f.expr("transaction_id = '' and reason is null") & (f.col("offset") > _by_partition(firsts, 2**63 - 1))


def _by_partition(values: Mapping[tuple[str, int], int], otherwise: int) -> Column:
    """Return the value of the record's partition."""
    known = [f.lit(x) for (topic, part), value in values.items() for x in (f"{topic}+{part}", value)]
    of_record = f.create_map(*known)[_place("topic", "partition")] if known else f.lit(None)
    return f.coalesce(of_record, f.lit(otherwise))


def _place(*columns: str) -> Column:
    return f.concat_ws("+", *(f.col(name).cast("string") for name in columns))


def _apply(tx: SparkTransaction, chosen: DataFrame) -> int:
    """Apply the events to their tables. Return how many changes there are."""
    truncates = f.bool_or(f.col("op") == "t").alias("truncates")
    leaves_some = f.bool_or(f.size("unchanged") > 0).alias("leaves_some")
    of_tables = chosen.groupBy("table").agg(truncates, leaves_some).collect()
    changes = 0
    for table, truncates, leaves_some in ((row[0], row[1], row[2]) for row in of_tables if row[0] in TABLES):
        of_table = chosen.where((f.col("table") == table) & f.col("op").isin("c", "r", "u", "d", "t"))
        done = tx.apply_changes(
            of_table.select(f"{table}.*", "lsn", "op", "topic", "partition", "offset", "unchanged"),
            table,
            sequence_by="lsn",
            deletes="op = 'd'",
            truncates="op = 't'" if truncates else None,
            position=_place("topic", "partition", "offset"),
            unchanged="unchanged" if leaves_some else None,
        )
        changes += done.updated + done.inserted + done.deleted + done.ignored
    return changes


def _refuse(events: DataFrame) -> NoReturn:
    limits_first = f.desc(f.col("topic") == TRANSACTIONS)
    bad = events.where("reason is not null").orderBy(limits_first, "topic", "partition", "offset").first()
    if bad is None:
        raise ValueError("an event cannot be applied, and differs when it is computed again: repeat the batch")
    otherwise = "" if bad["topic"] == TRANSACTIONS else ", or park such transactions: --park"
    raise ValueError(
        f"the event at {bad['topic']}+{bad['partition']}+{bad['offset']} cannot be applied: {bad['reason']}; nothing "
        f"of its batch is landed; correct the source{otherwise}"
    )


def _park(tx: SparkTransaction, chosen: DataFrame, refused: list[str]) -> DataFrame:
    """Write all events of these transactions to a table of bad changes; return the others. Of the events that name no
    transaction, only the bad ones are written."""
    names = _named(tx, refused).withColumn("is_refused", f.lit(True))
    marked = chosen.join(f.broadcast(names), "transaction_id", "left")
    is_parked = f.expr("is_refused is not null and (transaction_id <> '' or reason is not null)")
    columns = ("topic", "partition", "offset", "transaction_id", "reason", "value")
    tx.write(marked.where(is_parked).select(*columns), BAD, row_key=["topic", "partition", "offset"], duplicates="last")
    return marked.where(~is_parked)


def _note_positions(tx: SparkTransaction, chosen: DataFrame, next_offset: int, transactions: int) -> None:
    """Note up to where each partition is applied: there, too, transactions stand in the order of their commits."""
    landed = chosen.where(~_is_limit() & (f.col("transaction_id") != NO_TRANSACTION))
    last = landed.groupBy("topic", "partition").agg((f.max("offset") + 1).alias("next")).collect()
    rows = [row.asDict() for row in last] + [{"topic": TRANSACTIONS, "partition": 0, "next": next_offset}]
    names = ("topic", "partition", "next", "transactions")
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64())
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    tx.write(pa.Table.from_pylist([{**row, "transactions": transactions} for row in rows], schema), POSITIONS)


def _note_landed(tx: SparkTransaction, firsts: Mapping[str, int], before: int) -> None:
    """Note these transactions in place of the oldest ones. `before`: how many landed before them."""
    rows = [
        {"place": (before + number) % LANDED_KEPT, "transaction_id": name, "first": first}
        for number, (name, first) in enumerate(firsts.items())
    ]
    schema = pa.schema([("place", pa.int64()), ("transaction_id", pa.string()), ("first", pa.int64())])
    tx.write(pa.Table.from_pylist(rows, schema), LANDED)
