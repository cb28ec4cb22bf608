"""`examples.cdc`: transactions of another database land whole, in order and once, whatever arrives when."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples.cdc import cut, shop
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
    yield f"omid://{tmp_path}/db?tsoIdleExitSeconds=5"
    close_connections()


@pytest.fixture
def landing(spark: SparkSession, url: str) -> Callable[..., cut.Landed]:
    with pyomid.spark.connect(spark, url).transaction() as tx:
        cut.create_tables(tx)

    def land(records: list[Record], *, park: bool = False) -> cut.Landed:
        lines = [
            (r["topic"], r["partition"], r["offset"], json.dumps(r["key"]), r["value"] and json.dumps(r["value"]))
            for r in records
        ]
        with pyomid.spark.connect(spark, url).transaction() as tx:
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


def test_records_that_come_again_change_nothing(url: str, landing: Callable[..., cut.Landed]) -> None:
    source, records = published(600)
    half = [r for r in records if r["offset"] < 60]
    landing(half)
    landing([*half, *records])
    assert differing(url, source) == 0
    assert landing(records).transactions == 0
    assert differing(url, source) == 0


def spoiled(records: list[Record], change: Callable[[Record], None]) -> tuple[list[Record], Record]:
    """The records with one event changed, and that event: an update of stock."""
    records = copy.deepcopy(records)
    event = next(r for r in records[len(records) // 2 :] if r["topic"] == topic_of("stock") and r["value"]["op"] == "u")
    change(event)
    return records, event


BAD: dict[str, tuple[Callable[[Record], None], str]] = {
    "no key": (lambda r: r["value"]["after"].update(item=None), "column 'item' is null"),
    "empty key": (lambda r: r["value"]["after"].update(item=""), "column 'item' is empty"),
    "unknown operation": (lambda r: r["value"].update(op="t"), "unknown operation t"),
    "unknown table": (lambda r: r["value"]["source"].update(table="carts"), "unknown table carts"),
    "another schema": (lambda r: r["value"]["after"].update(colour="red"), "the event has .*colour"),
    "another type": (lambda r: r["value"]["after"].update(bought="many"), "'bought' is bigint; the event has many"),
    "no row": (lambda r: r["value"].update(after=None), "the event has no row"),
    "no transaction": (lambda r: r["value"].update(transaction=None), "names no transaction"),
}


@pytest.mark.parametrize("name", first(1, BAD))
def test_a_bad_event_stops_the_batch_with_its_place_and_nothing_is_landed(
    url: str, landing: Callable[..., cut.Landed], name: str
) -> None:
    change, message = BAD[name]
    records, event = spoiled(published(300)[1], change)
    with pytest.raises((ValueError, pyomid.errors.Misuse), match=message) as error:
        landing(records)
    assert f"{event['topic']}+0+{event['offset']}" in str(error.value)
    assert all(table.num_rows == 0 for table in stored(url).values())


def test_a_transaction_with_a_bad_event_is_parked_whole(
    spark: SparkSession, url: str, landing: Callable[..., cut.Landed]
) -> None:
    records, event = spoiled(published(300)[1], BAD["empty key"][0])
    name = event["value"]["transaction"]["id"]
    of_it = [r for r in records if (r["value"] or {}).get("transaction", {}).get("id") == name]
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


def test_an_event_without_a_transaction_is_parked_by_itself(
    spark: SparkSession, url: str, landing: Callable[..., cut.Landed]
) -> None:
    records, event = spoiled(published(300)[1], BAD["no transaction"][0])
    assert landing(records, park=True).bad == 1
    parked = pyomid.spark.connect(spark, url).read(cut.BAD).collect()
    assert [(r["topic"], r["offset"]) for r in parked] == [(event["topic"], event["offset"])]


def limit(offset: int, **value: Any) -> Record:
    return {"topic": TRANSACTIONS, "partition": 0, "offset": offset, "key": None, "value": value}


def test_a_transaction_without_events_is_passed(url: str, landing: Callable[..., cut.Landed]) -> None:
    source, records = published(300)
    assert landing([limit(0, status="BEGIN", id="0"), limit(1, status="END", id="0", event_count=0)]).transactions == 1
    landing([{**r, "offset": r["offset"] + 2} if r["topic"] == TRANSACTIONS else r for r in records])
    assert differing(url, source) == 0


def test_a_transaction_that_is_published_again_is_passed(url: str, landing: Callable[..., cut.Landed]) -> None:
    """As by Debezium after a crash: its END stands behind that of a transaction which is not complete yet."""
    source, records = published(300)
    end = max((r for r in records if r["topic"] == TRANSACTIONS), key=lambda r: int(r["offset"]))
    changes = [r for r in records if r["topic"] != TRANSACTIONS and r["value"]]
    of_it = [r for r in changes if r["value"]["transaction"]["id"] == end["value"]["id"]]
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


def with_positions(records: list[Record]) -> list[Record]:
    """The records as the connector of PostgreSQL writes their ids: number and position of each record."""
    numbered = copy.deepcopy(records)
    values = [record["value"] for record in numbered if record["value"]]
    last: dict[str, int] = {}
    for value in values:
        if "transaction" in value:
            name, lsn = value["transaction"]["id"].partition(":")[0], value["source"]["lsn"]
            last[name] = max(last.get(name, 0), lsn)
            value["transaction"]["id"] = f"{name}:{lsn}"
    for value in values:
        if "status" in value:
            name = value["id"].partition(":")[0]
            value["id"] = f"{name}:{last.get(name, 1) + (value['status'] == 'END')}"
    return numbered


def test_a_transaction_is_found_by_its_number_where_each_record_has_its_position(
    url: str, landing: Callable[..., cut.Landed]
) -> None:
    """PostgreSQL's ids since Debezium 2.1."""
    source, records = published(300)
    numbered = with_positions(records)
    assert landing(numbered).waiting == 0
    assert differing(url, source) == 0
    after = max(r["offset"] for r in records if r["topic"] == TRANSACTIONS) + 1
    again = [r | {"offset": r["offset"] + after + 10_000} for r in numbered if r["topic"] != TRANSACTIONS]
    limits = [r | {"offset": r["offset"] + after} for r in numbered if r["topic"] == TRANSACTIONS]
    assert landing([*again, *limits]).transactions == 0
    assert differing(url, source) == 0


def test_a_number_that_comes_again_names_another_transaction() -> None:
    limits = [{"offset": 0, "status": "END", "id": "7", "event_count": 1, "lsn": 9_000}]
    assert cut.cut(limits, {"7": cut.Count(1, 0, 8_999)}, 0, {"7": 500}) == ([("7", 1)], 1)
    assert cut.cut(limits, {}, 0, {"7": 9_000}) == ([], 0)
    assert cut.landed_of(["7:500", "7:400", "0a-b:3", "x"]) == {"7": 500, "0a-b:3": 0, "x": 0}


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
    counts = {"a": cut.Count(2, 0), "b": cut.Count(3, 0), "c": cut.Count(1, 0)}
    assert cut.cut(limits, counts, 4) == ([("a", 2), ("b", 3)], 8)  # 8 is missing
    assert cut.cut(limits, {"a": cut.Count(2, 0), "b": cut.Count(2, 0), "c": cut.Count(1, 0)}, 4) == ([("a", 2)], 6)
    assert cut.cut(limits, {"a": cut.Count(1, 0)}, 4) == ([], 4)
    assert cut.cut(limits, {}, 8) == ([], 8)
    assert cut.cut(limits, {"b": cut.Count(3, 0)}, 4, {"a": 0}) == ([("b", 3)], 8)
    assert cut.cut([*limits[:2], limits[1] | {"offset": 6}], {"a": cut.Count(2, 0)}, 4) == ([("a", 2)], 6)
    with pytest.raises(ValueError, match="transaction a has 3 events, and its END counts 2"):
        cut.cut(limits, {"a": cut.Count(3, 0)}, 4)
