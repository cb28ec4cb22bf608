"""The shop's tables and the topics of their changes."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "shop"
TRANSACTIONS: Final = f"{PREFIX}.transaction"
"""The topic of the BEGINs and ENDs of the shop's transactions."""
SIGNALS: Final = "debezium_signal"
"""The table by which Debezium is told to take an incremental snapshot: its events count, and change nothing."""

COLUMNS: Final = {
    "orders": "order_id bigint, customer bigint, state string, total bigint",
    "items": "order_id bigint, line int, item string, count bigint, price bigint",
    "stock": "item string, bought bigint, quantity bigint",
    "payments": "payment_id bigint, order_id bigint, amount bigint",
}
KEYS: Final = {"orders": ("order_id",), "items": ("order_id", "line"), "stock": ("item",), "payments": ("payment_id",)}
TABLES: Final = tuple(COLUMNS)

RECORD: Final = "topic string, partition int, offset bigint, key string, value string"
"""A line of a file: a record of Kafka."""


def topic_of(table: str) -> str:
    return f"{PREFIX}.public.{table}"
