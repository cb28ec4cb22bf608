"""A shop's transactions as Debezium publishes them, in files that grow while the demo runs.

    topics/shop.public.orders/partition=0/shop.public.orders+0+0000004711.json    one JSON object a line
    topics/shop.transaction/partition=0/…                                         BEGIN and END of each transaction

Each line is a record of Kafka: topic, partition, offset, key, value. Files of different topics arrive at different
times, each topic's in order, so the newest transactions are always incomplete.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from examples.cdc.topics import KEYS, PREFIX, TABLES, TRANSACTIONS, topic_of

ITEMS: Final = 500
LAG_CHUNKS_MAX: Final = 3
"""By how many chunks the file of one topic may come later than that of another."""

Row = dict[str, Any]


@dataclass(slots=True)
class Shop:
    """The shop's database. Each method that changes it is one transaction, and publishes its events."""

    random: random.Random
    rows: dict[str, dict[tuple[Any, ...], Row]] = field(default_factory=lambda: {name: {} for name in TABLES})
    published: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    events: int = 0
    transactions: int = 0
    lsn: int = 24_000_000
    open_orders: list[int] = field(default_factory=list)

    def open(self) -> None:
        """Buy the first stock, in one transaction."""
        bought = [(f"item-{number:04}", self.random.randrange(1_000, 9_000)) for number in range(ITEMS)]
        self._commit([("stock", {"item": item, "bought": count, "quantity": count}) for item, count in bought])

    def work(self, events: int) -> None:
        """Perform transactions until about so many events are published."""
        until = self.events + events
        while self.events < until:
            chosen = self.random.random()
            if chosen < 0.75 or len(self.open_orders) < 50:
                self.order()
            elif chosen < 0.85:
                self.cancel()
            else:
                self.restock()

    def order(self) -> None:
        """Sell one to four items of which there are enough, and take the payment."""
        order_id = self.transactions + 1_000_000
        lines = []
        for item in self.random.sample(range(ITEMS), self.random.randint(1, 4)):
            stock = self.rows["stock"][(f"item-{item:04}",)]
            count = self.random.randint(1, 3)
            if stock["quantity"] >= count:
                lines.append((stock, count, self.random.randrange(100, 9_999)))
        total = sum(count * price for _, count, price in lines)
        order = {"order_id": order_id, "customer": self.random.randrange(20_000), "state": "paid", "total": total}
        changes: list[tuple[str, Row | None]] = [("orders", order)]
        for line, (stock, count, price) in enumerate(lines):
            changes.append(
                ("items", {"order_id": order_id, "line": line, "item": stock["item"], "count": count, "price": price})
            )
            changes.append(("stock", {**stock, "quantity": stock["quantity"] - count}))
        changes.append(("payments", {"payment_id": order_id * 10, "order_id": order_id, "amount": total}))
        self._commit(changes)
        self.open_orders.append(order_id)

    def cancel(self) -> None:
        """Cancel an order: its items go back into stock, its payment is deleted."""
        place = self.random.randrange(len(self.open_orders))
        self.open_orders[place], order_id = self.open_orders[-1], self.open_orders[place]
        self.open_orders.pop()
        changes: list[tuple[str, Any]] = []
        order = self.rows["orders"][(order_id,)]
        for line in range(4):
            item = self.rows["items"].get((order_id, line))
            if item is not None:
                stock = self.rows["stock"][(item["item"],)]
                changes.append(("items", (order_id, line)))
                changes.append(("stock", {**stock, "quantity": stock["quantity"] + item["count"]}))
        changes.append(("payments", (order_id * 10,)))
        changes.append(("orders", {**order, "state": "cancelled", "total": 0}))
        self._commit(changes)

    def restock(self) -> None:
        stock = self.rows["stock"][(f"item-{self.random.randrange(ITEMS):04}",)]
        more = self.random.randrange(50, 200)
        self._commit([("stock", {**stock, "bought": stock["bought"] + more, "quantity": stock["quantity"] + more})])

    def _commit(self, changes: list[tuple[str, Any]]) -> None:
        """Perform one transaction: write these rows, delete those of which only the key is given."""
        self.transactions += 1
        self._publish_limit({"status": "BEGIN", "event_count": None, "data_collections": None})
        counts: dict[str, int] = defaultdict(int)
        for number, (table, change) in enumerate(changes, 1):
            counts[table] += 1
            self.lsn += 64
            order = {"id": self._id(), "total_order": number, "data_collection_order": counts[table]}
            self._publish_change(table, change, order)
        collections = [{"data_collection": f"public.{t}", "event_count": count} for t, count in counts.items()]
        self._publish_limit({"status": "END", "event_count": len(changes), "data_collections": collections})
        self.events += len(changes)

    def _id(self) -> str:
        """Return the transaction's id as PostgreSQL's connector writes it: with the position of that one record."""
        return f"{self.transactions}:{self.lsn}"

    def _publish_limit(self, limit: Row) -> None:
        self.lsn += 8
        self._publish(
            TRANSACTIONS, {"id": self._id()}, {"id": self._id(), **limit, "ts_ms": time.time_ns() // 1_000_000}
        )

    def _publish_change(self, table: str, change: Any, order: Row) -> None:
        rows = self.rows[table]
        key = change if isinstance(change, tuple) else tuple(change[name] for name in KEYS[table])
        before, after = rows.get(key), None if isinstance(change, tuple) else change
        source = {"connector": "postgresql", "name": PREFIX, "schema": "public", "table": table, "lsn": self.lsn}
        value = {
            "before": before,
            "after": after,
            "source": {**source, "txId": self.transactions, "ts_ms": time.time_ns() // 1_000_000},
            "op": "d" if after is None else "c" if before is None else "u",
            "transaction": order,
        }
        named = dict(zip(KEYS[table], key, strict=True))
        self._publish(topic_of(table), named, value)
        if after is None:
            del rows[key]
            self._publish(topic_of(table), named, None)  # a tombstone, for Kafka's compaction
        else:
            rows[key] = after

    def _publish(self, topic: str, key: Row, value: Row | None) -> None:
        line = {"topic": topic, "partition": 0, "offset": self.offsets[topic], "key": key, "value": value}
        self.offsets[topic] += 1
        self.published[topic].append(line)


class Files:
    """Writes what the shop published, chunk by chunk, into files of one topic each, some of them late."""

    def __init__(self, folder: Path, shop: Shop) -> None:
        self._folder = folder
        self._shop = shop
        self._late: dict[str, list[list[Row]]] = {topic: [] for topic in (TRANSACTIONS, *map(topic_of, TABLES))}
        for topic in self._late:
            self._of(topic).mkdir(parents=True)

    def chunk(self) -> None:
        """Write the files that are due, in any order of topics, each topic's in its own."""
        for topic in self._shop.random.sample(sorted(self._late), len(self._late)):
            late = self._late[topic]
            late.append(self._shop.published.pop(topic, []))
            due = len(late) - self._shop.random.randint(0, LAG_CHUNKS_MAX)
            for lines in late[: max(due, 0)]:
                self._write(topic, lines)
            del late[: max(due, 0)]

    def finish(self) -> None:
        for topic, late in self._late.items():
            for lines in [*late, self._shop.published.pop(topic, [])]:
                self._write(topic, lines)

    def _write(self, topic: str, lines: list[Row]) -> None:
        if lines:
            name = f"{topic}+0+{lines[0]['offset']:010}.json"
            hidden = self._of(topic) / f".{name}"
            hidden.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
            hidden.rename(self._of(topic) / name)

    def _of(self, topic: str) -> Path:
        return self._folder / topic / "partition=0"


def run(folder: Path, seconds: float, rate: int, seed: int) -> Shop:
    """Publish `rate` events a second for some time. Return the shop as it is then."""
    shop = Shop(random.Random(seed))
    files = Files(folder, shop)
    shop.open()
    began_s = time.monotonic()
    while (since_s := time.monotonic() - began_s) < seconds:
        if (due := int(since_s * rate) - shop.events) > 0:
            shop.work(due)
        files.chunk()
        time.sleep(max(0.0, 1.0 - (time.monotonic() - began_s - since_s)))
    files.finish()
    return shop
