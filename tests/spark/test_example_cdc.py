"""`examples.cdc`: transactions of another database land whole, in order and once, whatever arrives when."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples.cdc import cut, land, shop
from examples.cdc.invariants import broken
from examples.cdc.topics import RECORD, TABLES, TRANSACTIONS, topic_of

import pyomid
import pyomid.spark
from portions import first
from pyomid.spark.connections import close_connections

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.connect]

Record = dict[str, Any]


def published(events: int, seed: int = 7) -> tuple[shop.Shop, list[Record]]:
    """A shop, and its records in the order in which they were published."""
    source = shop.Shop(random.Random(seed))
    source.open()
    source.work(events)
    return source, sorted_by_transaction(source)


def sorted_by_transaction(source: shop.Shop) -> list[Record]:
    return [record for topic in sorted(source.published) for record in source.published[topic]]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"omid://{tmp_path}/db"
    close_connections()


@pytest.fixture
def landing(spark: SparkSession, url: str) -> Callable[..., cut.Landed]:
    with pyomid.spark.connect(spark, url).begin() as tx:
        cut.create_tables(tx)

    def land(records: list[Record], *, park: bool = False) -> cut.Landed:
        lines = [
            (
                *(r[name] for name in ("topic", "partition", "offset")),
                *(r[n] and json.dumps(r[n]) for n in ("key", "value")),
            )
            for r in records
        ]
        with pyomid.spark.connect(spark, url).begin() as tx:
            return cut.land(tx, spark.createDataFrame(lines, RECORD), park=park)

    return land


def stored(url: str) -> dict[str, Any]:
    with pyomid.connect(url) as db, db.begin() as tx:
        return {name: tx.table(name, codec=dict).to_arrow().read_all() for name in TABLES}


def differing(url: str, source: shop.Shop) -> int:
    found = {
        name: {frozenset(r.items()) for r in rows.drop_columns("lsn").to_pylist()} for name, rows in stored(url).items()
    }
    wanted = {name: {frozenset(r.items()) for r in source.rows[name].values()} for name in TABLES}
    return sum(len(found[name] ^ wanted[name]) for name in TABLES)


@pytest.mark.long
def test_each_batch_lands_a_consistent_cut_whatever_topic_comes_first(
    url: str, landing: Callable[..., cut.Landed]
) -> None:
    source, records = published(900)
    rand = random.Random(3)
    arrived = {topic: [r for r in records if r["topic"] == topic] for topic in source.published}
    landed = []
    while any(arrived.values()):
        batch = []
        for topic, left in arrived.items():
            count = rand.choice([0, 1, 200, len(left)])
            batch += left[:count]
            arrived[topic] = left[count:]
        if batch:
            landed.append(landing(batch))
            assert broken(stored(url)) == 0
    assert sum(each.transactions for each in landed) == source.transactions
    assert landed[-1].waiting == 0
    assert differing(url, source) == 0


@pytest.mark.long
def test_records_that_come_again_change_nothing(url: str, landing: Callable[..., cut.Landed]) -> None:
    source, records = published(600)
    half = [r for r in records if r["offset"] < 60]
    landing(half)
    landing([*half, *records])
    assert differing(url, source) == 0
    assert landing(records).transactions == 0
    assert differing(url, source) == 0


def xid_of(record: Record) -> str:
    value = record["value"]
    return str(value.get("transaction", value)["id"]).split(":")[0]


def spoiled(records: list[Record], change: Callable[[Record], None]) -> tuple[list[Record], Record]:
    """The records with one event changed, and that event: an update of stock."""
    records = copy.deepcopy(records)
    event = next(r for r in records[len(records) // 2 :] if r["topic"] == topic_of("stock") and r["value"]["op"] == "u")
    change(event)
    return records, event


BAD: dict[str, tuple[Callable[[Record], None], str]] = {
    "no key": (lambda r: r["value"]["after"].update(item=None), "column 'item' is null"),
    "empty key": (lambda r: r["value"]["after"].update(item=""), "column 'item' is empty"),
    "unknown operation": (lambda r: r["value"].update(op="x"), "unknown operation x"),
    "unknown table": (lambda r: r["value"]["source"].update(table="carts"), "unknown table carts"),
    "another schema": (lambda r: r["value"]["after"].update(colour="red"), "the event has .*colour"),
    "another type": (lambda r: r["value"]["after"].update(bought="many"), "'bought' is bigint; the event has many"),
    "a key over the limit": (lambda r: r["value"]["after"].update(item="x" * 40_000), "the row key takes 40000 bytes"),
    "not a number": (lambda r: r["value"]["after"].update(bought=float("nan")), "'bought' is bigint; the event has"),
    "a fraction": (lambda r: r["value"]["after"].update(bought="1.5"), "'bought' is bigint; the event has 1.5"),
    "no row": (lambda r: r["value"].update(after=None), "the event has no row"),
    "no lsn": (lambda r: r["value"]["source"].update(lsn=None), "the event has no lsn"),
    "no transaction": (lambda r: r["value"].update(transaction=None), "names no transaction"),
}


@pytest.mark.parametrize("name", first(0, BAD))
def test_a_bad_event_stops_the_batch_with_its_place_and_nothing_is_landed(
    url: str, landing: Callable[..., cut.Landed], name: str
) -> None:
    change, message = BAD[name]
    records, event = spoiled(published(300)[1], change)
    with pytest.raises((ValueError, pyomid.errors.Misuse), match=message) as error:
        landing(records)
    assert f"{event['topic']}+0+{event['offset']}" in str(error.value)
    assert all(table.num_rows == 0 for table in stored(url).values())


@pytest.mark.long
def test_a_transaction_with_a_bad_event_is_parked_whole(
    spark: SparkSession, url: str, landing: Callable[..., cut.Landed]
) -> None:
    records, event = spoiled(published(300)[1], BAD["empty key"][0])
    of_it = [r for r in records if r["topic"] != TRANSACTIONS and r["value"] and xid_of(r) == xid_of(event)]
    of_it[0]["value"]["transaction"]["total_order"] = None
    assert landing([*records, *records], park=True).bad == 1
    parked = pyomid.spark.connect(spark, url).read(cut.BAD).collect()
    assert sorted((r["topic"], r["offset"]) for r in parked if r["topic"] != TRANSACTIONS) == sorted(
        (r["topic"], r["offset"]) for r in of_it
    )
    assert {r["reason"] for r in parked if r["reason"]} == {
        "column 'item' is empty",
        "the event names no transaction, or no place in it",
    }
    assert landing([], park=True).transactions == 0


def test_an_event_without_an_order_that_comes_again_is_parked_with_its_transaction(
    spark: SparkSession, url: str, landing: Callable[..., cut.Landed]
) -> None:
    source = Source("postgresql")
    records = source.transaction(("c", "stock", pens(9)), ("c", "payments", paid(5)))
    records[1]["value"]["transaction"]["total_order"] = None
    again = [source.record(record["topic"], record["value"]) for record in records[1:3]]
    assert landing([*records[:3], *again], park=True).waits_for.endswith("has no END")
    assert landing([records[3]], park=True) == cut.Landed(1, 0, 0, 1)
    parked = pyomid.spark.connect(spark, url).read(cut.BAD).collect()
    places = {(r["topic"], r["offset"]) for r in [*records[1:3], *again]}
    assert {(row["topic"], row["offset"]) for row in parked if row["topic"] != TRANSACTIONS} == places
    assert found_in(url, "stock") == []


@pytest.mark.long
def test_an_event_without_a_transaction_is_parked_by_itself(
    spark: SparkSession, url: str, landing: Callable[..., cut.Landed]
) -> None:
    records, event = spoiled(published(300)[1], BAD["no transaction"][0])
    assert landing(records, park=True).bad == 1
    parked = pyomid.spark.connect(spark, url).read(cut.BAD).collect()
    assert [(r["topic"], r["offset"]) for r in parked] == [(event["topic"], event["offset"])]


def limit(offset: int, **value: Any) -> Record:
    return {"topic": TRANSACTIONS, "partition": 0, "offset": offset, "key": None, "value": value}


@pytest.mark.long
def test_a_transaction_without_events_is_passed(url: str, landing: Callable[..., cut.Landed]) -> None:
    source, records = published(300)
    assert landing([limit(0, status="BEGIN", id="0"), limit(1, status="END", id="0", event_count=0)]).transactions == 1
    landing([{**r, "offset": r["offset"] + 2} if r["topic"] == TRANSACTIONS else r for r in records])
    assert differing(url, source) == 0


@pytest.mark.long
def test_a_transaction_that_is_published_again_is_passed(url: str, landing: Callable[..., cut.Landed]) -> None:
    """As by Debezium after a crash: its END stands behind that of a transaction which is not complete yet."""
    source, records = published(300)
    end = max((r for r in records if r["topic"] == TRANSACTIONS), key=lambda r: int(r["offset"]))
    changes = [r for r in records if r["topic"] != TRANSACTIONS and r["value"]]
    of_it = [r for r in changes if xid_of(r) == xid_of(end)]
    again = [r | {"offset": r["offset"] + 10_000} for r in of_it]
    late = of_it[0] | {
        "offset": of_it[0]["offset"] + 20_000,
        "value": of_it[0]["value"] | {"transaction": {"id": "late", "total_order": 1}},
    }
    ends = [limit(end["offset"] + 1, status="END", id="late", event_count=1), end | {"offset": end["offset"] + 2}]
    landing([*records, *again[:1], *ends])
    landed = landing([*again[1:], late, limit(end["offset"] + 3, status="END", id="new", event_count=0)])
    assert (landed.transactions, landed.waiting) == (2, 0)
    assert differing(url, source) == 0


@pytest.mark.parametrize("is_one", [False, True])
@pytest.mark.long
def test_a_copy_of_an_older_change_does_not_hide_a_newer_one(
    url: str, landing: Callable[..., cut.Landed], is_one: bool
) -> None:
    """Without log positions the offset is a change's sequence, and a batch may end amid the copies."""
    source = Source("mysql")
    changes = [("c", "stock", pens(1)), ("u", "stock", pens(2))]
    records = source.transaction(*changes) if is_one else [r for each in changes for r in source.transaction(each)]
    of_stock = [record for record in records if record["topic"] == topic_of("stock")]
    again = [source.record(record["topic"], record["value"]) for record in of_stock]
    landing([*records, again[0]])
    assert found_in(url, "stock") == [["pen", 9, 2]]
    landing(again[1:])
    assert found_in(url, "stock") == [["pen", 9, 2]]


@pytest.mark.long
def test_each_partition_of_a_topic_has_its_own_position(url: str, landing: Callable[..., cut.Landed]) -> None:
    source, records = published(300)
    landing([r for r in records if r["offset"] < 540])
    later = [r for r in records if r["offset"] >= 540]
    moved = [r | {"partition": 1, "offset": n} if r["topic"] != TRANSACTIONS else r for n, r in enumerate(later)]
    landing(moved)
    assert differing(url, source) == 0


def test_an_end_without_a_count_is_refused(landing: Callable[..., cut.Landed]) -> None:
    with pytest.raises(ValueError, match=r"shop.transaction\+0\+0 cannot be applied: it is not a BEGIN or END"):
        landing([limit(0, status="END", id="0")], park=True)


def test_a_cut_ends_before_the_first_transaction_that_is_incomplete() -> None:
    limits = [
        {"offset": 4, "status": "BEGIN", "id": "a", "event_count": None},
        {"offset": 5, "status": "END", "id": "a", "event_count": 2},
        {"offset": 6, "status": "BEGIN", "id": "b", "event_count": None},
        {"offset": 7, "status": "END", "id": "b", "event_count": 3},
        {"offset": 9, "status": "END", "id": "c", "event_count": 1},
    ]
    counts = {"a": (2, 0), "b": (3, 0), "c": (1, 0)}
    gap = "shop.transaction+0+8 has not arrived, and shop.transaction+0+9 has"
    assert cut.cut(limits, counts, 4) == ([("a", 2), ("b", 3)], 8, gap)
    assert cut.cut(limits, counts | {"b": (2, 0)}, 4) == ([("a", 2)], 6, "transaction b has 2 of its 3 events")
    assert cut.cut(limits, {"a": (1, 0)}, 4) == ([], 4, "transaction a has 1 of its 2 events")
    assert cut.cut(limits, {}, 8) == ([], 8, gap)
    assert cut.cut(limits[:3], counts, 4) == ([("a", 2)], 6, "transaction b has no END")
    assert cut.cut(limits[:4], {"b": (3, 0)}, 4, ["a"]) == ([("b", 3)], 8, "")
    assert cut.cut([*limits[:2], limits[1] | {"offset": 6}], {"a": (2, 0)}, 4) == ([("a", 2)], 6, "")
    interrupted = [{"offset": 3, "status": "BEGIN", "id": "z", "event_count": None}, *limits[:4]]
    assert cut.cut(interrupted, counts, 3) == ([], 3, "transaction z has no END")
    begun_again = [*limits[:1], limits[0] | {"offset": 5}, limits[1] | {"offset": 6}]  # by a restarted connector
    assert cut.cut(begun_again, counts, 4) == ([("a", 2)], 7, "")
    with pytest.raises(ValueError, match="transaction a has 3 events, and its END counts 2"):
        cut.cut(limits, {"a": (3, 0)}, 4)


def test_an_xid_that_comes_again_names_another_transaction() -> None:
    def at(offset: int, status: str, xid: str, lsn: int) -> Record:
        return {"offset": offset, "status": status, "id": f"{xid}:{lsn}", "xid": xid, "at": lsn}

    limits = [at(0, "BEGIN", "7", 10), at(1, "END", "7", 19), at(2, "BEGIN", "7", 90), at(3, "END", "7", 95)]
    assert cut.spans(limits, {}) == {"7:19": ("7", 10, 19), "7:95": ("7", 90, 95)}
    assert cut.spans(limits[3:], {"7:19": 10, "0a-b:3": 0}) == {"7:19": ("7", 10, 19), "7:95": ("7", 20, 95)}
    assert cut.spans([*limits, *({**each, "offset": each["offset"] + 4} for each in limits[:2])], {}) == cut.spans(
        limits, {}
    )


# Records as each connector publishes them, written by hand from its documentation

IDS: dict[str, Callable[[int, int], str]] = {
    "postgresql": lambda number, place: f"{570 + number}:{53_195_000 + 100 * number + place}",
    "postgresql before 2.1": lambda number, _: str(570 + number),
    "mysql": lambda number, _: f"0e4d5dcd-a33b-11ea-80f1-02010a22a99e:{10 + number}",
    "mysql without GTIDs": lambda number, _: f"file=mysql-bin.000003,pos={154 + 400 * number}",
    "mariadb": lambda number, _: f"0-112-{4_711 + number}",
    "oracle": lambda number, _: f"0a001b00a20300{number:02x}",
    "sqlserver": lambda number, _: f"00000025:00000d{number:02}:0025",
    "sqlserver, all digits": lambda number, _: f"00000025:000001{number:02}",
    "db2": lambda number, _: f"00000000:00003f2e:00000000:000001{number:02}",
    "mongodb": lambda number, _: f'{{"id": {{"$binary": "lJNJ", "$type": "4"}}}}:{number}',
}
"""The ids of BEGIN, events and END: by the transaction's number, and the record's place in it."""

SOURCES: dict[str, Record] = {
    "mysql": {"gtid": None, "file": "mysql-bin.000003", "pos": 154, "row": 0, "db": "inventory"},
    "oracle": {"txId": "5.6.641", "scn": "2122185", "commit_scn": "2122185", "rs_id": "001234", "ssn": 1},
    "sqlserver": {"commit_lsn": "00000027:00000758:0005", "change_lsn": "00000027:00000758:0003", "db": "testDB"},
}


class Source:
    """The records of a connector, with the offsets that Kafka gives them."""

    def __init__(self, connector: str) -> None:
        self._ids = IDS[connector]
        self._kind = connector.partition(" ")[0].strip(",")
        self._offsets: dict[str, int] = {}
        self._number = 0
        self.in_quotes = False

    def transaction(self, *changes: tuple[str, str, Record | None]) -> list[Record]:
        """BEGIN, the events and END of one transaction. A change: operation, table, row."""
        self._number += 1
        limits = {"status": "BEGIN", "id": self._ids(self._number, 0), "event_count": None}
        records = [self.record(TRANSACTIONS, limits)]
        for place, (op, table, row) in enumerate(changes, 1):
            order: Record = {"id": self._ids(self._number, place), "total_order": place, "data_collection_order": 1}
            if self.in_quotes:
                order["total_order"] = str(place)
            records.append(self.change(op, table, row, order, place))
        end = {"status": "END", "id": self._ids(self._number, len(changes) + 1), "event_count": len(changes)}
        return [*records, self.record(TRANSACTIONS, end)]

    def change(self, op: str, table: str, row: Record | None, order: Record | None = None, place: int = 0) -> Record:
        source: Record = {"connector": self._kind, "table": table, **SOURCES.get(self._kind, {})}
        if self._kind == "postgresql":
            source |= {"lsn": 53_195_000 + 100 * self._number + place, "txId": 570 + self._number, "snapshot": "false"}
        rows = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
        return self.record(topic_of(table), {"op": op, **rows, "source": source, "transaction": order})

    def record(self, topic: str, value: Record | None) -> Record:
        offset = self._offsets.get(topic, 0)
        self._offsets[topic] = offset + 1
        return {"topic": topic, "partition": 0, "offset": offset, "key": None, "value": value}


def pens(quantity: int, item: str = "pen") -> Record:
    return {"item": item, "bought": 9, "quantity": quantity}


def paid(amount: int, payment: int = 1) -> Record:
    return {"payment_id": payment, "order_id": 1, "amount": amount}


def found_in(url: str, table: str) -> list[list[Any]]:
    """The rows without their sequences, in the order of the key."""
    rows = [{name: value for name, value in row.items() if name != "lsn"} for row in stored(url)[table].to_pylist()]
    return sorted(list(row.values()) for row in rows)


@pytest.mark.parametrize("connector", first(1, IDS))
def test_each_connector_s_transactions_land_whole(url: str, landing: Callable[..., cut.Landed], connector: str) -> None:
    source = Source(connector)
    one = source.transaction(("c", "stock", pens(9)), ("c", "stock", pens(4, "cup")), ("c", "payments", paid(5)))
    source.in_quotes = True  # as the documentation shows numbers
    two = source.transaction(("u", "stock", pens(8)), ("d", "stock", pens(4, "cup")), ("u", "payments", paid(6)))
    begin, _, _, payment, end = two
    landed = landing([*one[:3], one[4], begin, *two[1:3], end])
    assert (landed.transactions, landed.waiting) == (0, 8)
    assert landed.waits_for == f"transaction {one[4]['value']['id']} has 2 of its 3 events"
    assert landing([one[3]]).transactions == 1
    assert found_in(url, "stock") == [["cup", 9, 4], ["pen", 9, 9]]
    assert landing([payment]) == cut.Landed(1, 3, 0, 0)
    assert (found_in(url, "stock"), found_in(url, "payments")) == ([["pen", 9, 8]], [[1, 1, 6]])


@pytest.mark.long
def test_two_transactions_with_one_xid_are_two(url: str, landing: Callable[..., cut.Landed]) -> None:
    source = Source("postgresql")
    one = source.transaction(("c", "stock", pens(9)), ("c", "payments", paid(5)))
    two = source.transaction(("u", "stock", pens(8)), ("u", "payments", paid(6)))
    for record in two:
        value = record["value"].get("transaction") or record["value"]
        value["id"] = f"571:{value['id'].split(':')[1]}"
    assert landing([*one[:2], one[3], *two]).transactions == 0
    assert landing([one[2]]) == cut.Landed(2, 4, 0, 0)
    assert (found_in(url, "stock"), found_in(url, "payments")) == ([["pen", 9, 8]], [[1, 1, 6]])


@pytest.mark.parametrize("connector", first(1, ["postgresql", "mysql"]))
@pytest.mark.long
def test_rows_of_a_snapshot_land_without_a_transaction(
    url: str, landing: Callable[..., cut.Landed], connector: str
) -> None:
    source = Source(connector)
    snapshot = [source.change("r", "stock", pens(9)), source.change("r", "stock", pens(4, "cup"))]
    assert landing(snapshot) == cut.Landed(0, 2, 0, 0)
    begin, change, end = source.transaction(("u", "stock", pens(8)))
    again = source.change("r", "stock", pens(7))
    assert landing([*snapshot, begin, change, again]).waiting == 3  # the row was read after the change
    assert found_in(url, "stock") == [["cup", 9, 4], ["pen", 9, 9]]
    assert landing([end]).waiting == 0
    assert found_in(url, "stock")[0] == ["cup", 9, 4]
    assert found_in(url, "stock")[1] == ["pen", 9, 8 if connector == "postgresql" else 7]
    bad = source.change("r", "stock", pens(1, ""))
    good = source.change("r", "stock", pens(2, "mug"))
    assert landing([bad, good], park=True) == cut.Landed(0, 1, 0, 1)
    assert ["mug", 9, 2] in found_in(url, "stock")


@pytest.mark.parametrize("form", first(1, cut._UNAVAILABLE_FORMS))
@pytest.mark.long
def test_a_value_that_the_source_left_out_stays(url: str, landing: Callable[..., cut.Landed], form: str) -> None:
    def order(number: int, state: str, total: int | str) -> Record:
        return {"order_id": number, "customer": 7, "state": state, "total": total}

    source = Source("postgresql")
    landing(source.transaction(("c", "orders", order(1, "a long text", 1)), ("c", "orders", order(2, "short", 2))))
    more = source.transaction(("u", "orders", order(1, form, 3)), ("c", "orders", order(3, "new", 3)))
    more += source.transaction(("u", "orders", order(3, form, 4)), ("u", "orders", order(2, "longer", form)))
    assert landing(more).transactions == 2
    assert found_in(url, "orders") == [[1, 7, "a long text", 3], [2, 7, "longer", 2], [3, 7, "new", 4]]
    with pytest.raises(pyomid.errors.Misuse, match=r"leave out column 'state' of the row \{\"order_id\":4\}"):
        landing(source.transaction(("u", "orders", order(4, form, 1))))


@pytest.mark.long
def test_a_new_row_that_lacks_a_value_is_a_bad_event(
    spark: SparkSession, url: str, landing: Callable[..., cut.Landed]
) -> None:
    """PostgreSQL's connector publishes a changed key as a delete and a creation, which lacks a large value that the
    update left as it was. The row that had the new key before must not lend it its own."""

    def order(number: int, state: str | None) -> Record:
        return {"order_id": number, "customer": state and 7, "state": state, "total": state and 1}

    source = Source("postgresql")
    landing(source.transaction(("c", "orders", order(1, "one")), ("c", "orders", order(2, "two"))))
    moved = source.transaction(
        ("d", "orders", order(1, None)),
        ("d", "orders", order(2, None)),
        ("c", "orders", order(1, "__debezium_unavailable_value")),
    )
    place = rf"{topic_of('orders')}\+0\+{moved[3]['offset']}"
    with pytest.raises(ValueError, match=f"{place} cannot be applied: the event makes a row, and leaves out .*'state'"):
        landing(moved)
    assert landing(moved, park=True) == cut.Landed(1, 0, 0, 1)
    assert found_in(url, "orders") == [[1, 7, "one", 1], [2, 7, "two", 1]]
    parked = pyomid.spark.connect(spark, url).read(cut.BAD).collect()
    assert sorted(row["offset"] for row in parked if row["topic"] == topic_of("orders")) == [2, 3, 4]


@pytest.mark.parametrize("connector", first(1, ["postgresql", "mysql"]))
@pytest.mark.long
def test_a_truncated_table_keeps_what_came_later(url: str, landing: Callable[..., cut.Landed], connector: str) -> None:
    """PostgreSQL truncates in a transaction, MySQL outside of any."""
    source = Source(connector)
    landing(source.transaction(("c", "stock", pens(9)), ("c", "payments", paid(5))))
    begin, change, end = source.transaction(("c", "stock", pens(4, "cup")))
    if connector == "postgresql":
        truncated = source.transaction(("c", "stock", pens(3, "bag")), ("t", "stock", None), ("c", "stock", pens(1)))
    else:
        truncated = [source.change("t", "stock", None), *source.transaction(("c", "stock", pens(1)))]
    assert landing([change, *truncated]).transactions == 0
    assert found_in(url, "stock") == [["pen", 9, 9]]
    landing([begin, end])
    assert (found_in(url, "stock"), found_in(url, "payments")) == ([["pen", 9, 1]], [[1, 1, 5]])


@pytest.mark.long
def test_what_is_no_change_stops_nothing(spark: SparkSession, url: str, landing: Callable[..., cut.Landed]) -> None:
    source = Source("postgresql")
    schema = {"databaseName": "shop", "schemaName": None, "ddl": "ALTER …", "tableChanges": [], "ts_ms": 1}
    message = {"prefix": "audit", "content": "aGk="}
    begin, change, told, end = source.transaction(("c", "stock", pens(9)), ("m", "", None))
    del told["value"]["before"], told["value"]["after"]
    told |= {"topic": f"{shop.PREFIX}.message", "value": told["value"] | {"message": message}}
    free = source.record(
        f"{shop.PREFIX}.message", {"op": "m", "source": {"connector": "postgresql"}, "message": message}
    )
    others = [
        source.record("__debezium-heartbeat.shop", {"ts_ms": 1}),
        source.record("__debezium-heartbeat.shop", {"schema": {}, "payload": {"ts_ms": 1}}),
        source.record(shop.PREFIX, schema | {"source": {"connector": "mysql"}}),
        source.record(topic_of("stock"), None),
        source.record(TRANSACTIONS, None),
        free | {"offset": 1},
    ]
    more = source.transaction(("u", "stock", pens(8)))
    for record in more:
        enveloped = {"schema": {"type": "struct"}, "payload": record["value"]}
        record["value"] = dict(reversed(enveloped.items())) if record["topic"] == TRANSACTIONS else enveloped
    assert landing([begin, change, told, end, *others, *more]) == cut.Landed(2, 2, 0, 0)
    assert found_in(url, "stock") == [["pen", 9, 8]]
    broken_one = source.record(topic_of("stock"), None) | {"value": {"ts": 1}}
    with pytest.raises(ValueError, match="unknown operation null"):
        landing([broken_one])


@pytest.mark.parametrize("key", [{"item": "cup"}, {"schema": {"type": "struct"}, "payload": {"item": "cup"}}])
@pytest.mark.long
def test_a_delete_without_a_row_is_of_its_record_s_key(
    url: str, landing: Callable[..., cut.Landed], key: Record
) -> None:
    source = Source("mysql")
    landing(source.transaction(("c", "stock", pens(9)), ("c", "stock", pens(4, "cup"))))
    begin, deleted, end = source.transaction(("d", "stock", None))
    tombstone = source.record(topic_of("stock"), None) | {"key": key}
    with pytest.raises(ValueError, match="the event has no row"):
        landing([begin, deleted, end])
    assert landing([begin, deleted | {"key": key}, tombstone, end]) == cut.Landed(1, 1, 0, 0)
    assert found_in(url, "stock") == [["pen", 9, 9]]


@pytest.mark.long
def test_a_changed_key_is_a_delete_and_an_insert(url: str, landing: Callable[..., cut.Landed]) -> None:
    source = Source("postgresql")
    landing(source.transaction(("c", "stock", pens(9))))
    begin, deleted, created, end = source.transaction(("d", "stock", pens(9)), ("c", "stock", pens(9, "biro")))
    created["value"]["source"]["lsn"] = deleted["value"]["source"]["lsn"]
    created["value"]["transaction"]["id"] = deleted["value"]["transaction"]["id"]
    assert landing([begin, deleted, created, end]) == cut.Landed(1, 2, 0, 0)
    assert found_in(url, "stock") == [["biro", 9, 9]]


@pytest.mark.parametrize("connector", first(1, ["postgresql", "mysql"]))
@pytest.mark.long
def test_a_connector_that_starts_again_amid_a_transaction_lands_it_once(
    url: str, landing: Callable[..., cut.Landed], connector: str
) -> None:
    source = Source(connector)
    *interrupted, end = source.transaction(("c", "stock", pens(9)), ("u", "stock", pens(8)), ("c", "payments", paid(5)))
    begin, *again = [source.record(each["topic"], each["value"]) for each in interrupted]
    begin["offset"], end["offset"] = end["offset"], end["offset"] + 1
    assert landing(interrupted[:3]).transactions == 0
    assert landing([begin, *again]).waits_for == f"transaction {begin['value']['id']} has no END"
    landed = landing([end])
    assert (landed.transactions, landed.waiting) == (1, 0)
    assert (found_in(url, "stock"), found_in(url, "payments")) == ([["pen", 9, 8]], [[1, 1, 5]])


def test_the_signal_of_an_incremental_snapshot_counts_and_changes_nothing(
    url: str, landing: Callable[..., cut.Landed]
) -> None:
    source = Source("postgresql")
    signal = {"id": "ad-hoc-1", "type": "execute-snapshot", "data": "{}"}
    records = source.transaction(("c", "debezium_signal", signal), ("c", "stock", pens(9)))
    read = source.change("r", "stock", pens(4, "cup"))
    read["value"]["source"]["snapshot"] = "incremental"
    assert landing([*records, read]) == cut.Landed(1, 2, 0, 0)
    assert found_in(url, "stock") == [["cup", 9, 4], ["pen", 9, 9]]


def test_a_transaction_that_stays_incomplete_is_reported_once_per_bound(caplog: pytest.LogCaptureFixture) -> None:
    wait = land.Wait()
    incomplete = "transaction 571:53195832 has 1 of its 2 events"
    wait.note(cut.Landed(0, 0, 2, 0, incomplete), 10.0)
    wait.report(60.0)
    wait.note(cut.Landed(0, 0, 3, 0, incomplete), 65.0)
    assert not caplog.records
    for now_s in (70.0, 80.0, 129.0):
        wait.report(now_s)
    assert [each.getMessage().partition(";")[0] for each in caplog.records] == [
        f"nothing has landed for 60 s: {incomplete}"
    ]
    wait.report(131.0)
    assert caplog.records[-1].getMessage().startswith(f"nothing has landed for 121 s: {incomplete}")
    wait.note(cut.Landed(1, 2, 0, 0), 140.0)
    wait.report(900.0)
    wait.note(cut.Landed(0, 0, 1, 0, "transaction 572:1 has no END"), 900.0)
    wait.report(901.0)
    assert len(caplog.records) == 2
    wait.report(901.0, 0.0)
    assert len(caplog.records) == 3
