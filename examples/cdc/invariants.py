"""What holds in the shop after each of its transactions, and so in every snapshot of a consistent cut.

stock      an item's quantity = what was bought - what orders hold of it
orders     an order's total = the sum of its items = the sum of its payments
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc


def broken(tables: Mapping[str, pa.Table]) -> int:
    """Return the number of items and orders for which an invariant does not hold."""
    items = tables["items"]
    sold = items.group_by("item").aggregate([("count", "sum")])
    amounts = items.append_column("amount", pc.multiply(items["count"], items["price"]))
    owed = amounts.group_by("order_id").aggregate([("amount", "sum")])
    paid = tables["payments"].select(["order_id", "amount"]).group_by("order_id").aggregate([("amount", "sum")])
    stock = tables["stock"].append_column("sold", pc.subtract(tables["stock"]["bought"], tables["stock"]["quantity"]))
    orders = tables["orders"].select(["order_id", "total"])
    return (
        _different(stock.select(["item", "sold"]), sold, "item")
        + _different(orders, owed, "order_id")
        + _different(orders, paid.rename_columns(["order_id", "amount_sum"]), "order_id")
    )


def _different(left: pa.Table, right: pa.Table, key: str) -> int:
    """Return the number of keys with different values; a missing key has the value 0."""
    names = (key, "left", "right")
    right = right.rename_columns([key if name == key else "right" for name in right.column_names])
    left = left.rename_columns([key if name == key else "left" for name in left.column_names])
    joined = left.join(right, key, join_type="full outer").select(list(names))
    one, other = (pc.fill_null(pc.cast(joined[name], pa.int64()), 0) for name in names[1:])
    return int(pc.sum(pc.not_equal(one, other)).as_py() or 0)
