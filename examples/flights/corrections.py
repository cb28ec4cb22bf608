"""A Python service without Spark: cancels flights and adjusts both totals, each flight in one transaction.

    python -m examples.flights.corrections KEYS.json THREAD…

Several threads, of one program or of two, cancel every flight, in different orders, under one idempotency key: all but
one find it done. They also conflict with the pipelines on the totals. Each run notes that it is about to commit, so the
demo can find out what became of the commit when a process dies.

If the environment names a file in DEMO_AWAITS, the program connects, and begins its work when that file exists.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

from examples.flights.again import again
from examples.flights.events import all_events, note
from examples.flights.settings import CLEARED, DAILY, FLIGHTS, ROUTES, url

import pyomid
from pyomid.rows.row_key import key_layout
from pyomid.rows.values import decode_value, encode_value

LANE = "corrections"

AWAITED_S_MAX = 120
"""Longest wait for the file in DEMO_AWAITS."""


class Typed:
    """A table written by Spark, read by the client: row keys and values in the documented encodings."""

    def __init__(self, tx: pyomid.Transaction, name: str) -> None:
        self._table = tx.table(name)
        schema = self._table.info.schema
        assert schema is not None, f"{name} was written by Spark"
        self._layout = key_layout(schema)
        self._columns = {column.name: column for column in schema.columns}

    def get(self, *key: Any) -> tuple[bytes, dict[str, Any]]:
        row = self._layout.encode(key)
        stored = self._table.get(row) or {}
        values = {}
        for name, column in self._columns.items():
            if column.column is not None and (value := stored.get(b"%b:%b" % column.column)) is not None:
                values[name] = decode_value(value, column.spark_type)
        return row, values

    def put(self, row: bytes, **values: Any) -> None:
        self._table.put(row, {self._name(n): encode_value(v, self._columns[n].spark_type) for n, v in values.items()})

    def clear(self, row: bytes, *names: str) -> None:
        self._table.delete(row, [self._name(name) for name in names])

    def _name(self, name: str) -> bytes:
        place = self._columns[name].column
        assert place is not None
        return b"%b:%b" % place


def cancel_noted(tx: pyomid.Transaction, thread: int, key: list[Any], begun: list[int]) -> None:
    """Cancel one flight, and note that the commit request follows. The transaction's start is appended to `begun`."""
    origin, time_hour, carrier, flight = key
    if not cancel(tx, origin, datetime.fromisoformat(time_hour), carrier, flight):
        raise AssertionError(f"{key} was cancelled without its id")
    begun.append(tx.start_ts)
    note(LANE, "committing", thread=thread, start_ts=tx.start_ts, key=key)


def cancel(tx: pyomid.Transaction, origin: str, time_hour: datetime, carrier: str, flight: int) -> bool:
    """Cancel one flight, and adjust its day and its route; False if it was already cancelled."""
    flights, daily, routes = Typed(tx, FLIGHTS), Typed(tx, DAILY), Typed(tx, ROUTES)
    row, found = flights.get(origin, time_hour, carrier, flight)
    if "dep_time" not in found:
        return False
    day_row, day = daily.get(date(found["year"], found["month"], found["day"]), origin)
    route_row, route = routes.get(origin, found["dest"])
    flights.clear(row, *CLEARED)
    daily.put(day_row, cancelled=day["cancelled"] + 1, dep_delay=day["dep_delay"] - found.get("dep_delay", 0))
    routes.put(route_row, distance=route["distance"] - found["distance"])
    return True


def work(db: pyomid.Database, keys: list[list[Any]], seed: int) -> None:
    order = list(keys)
    random.Random(seed).shuffle(order)
    begun: list[int] = []
    for key in order:
        attempt = partial(db.run_once, f"cancel {' '.join(map(str, key))}", cancel_noted, seed, key, begun)
        done = again(attempt, lambda error: note(LANE, "interrupted", thread=seed, error=type(error).__name__))
        if done is None:
            note(LANE, "corrected", thread=seed, start_ts=begun[-1], key=key)
        else:
            note(LANE, "corrected before", thread=seed, start_ts=done.start_ts, key=key)


def committed_runs() -> dict[tuple[Any, ...], set[int]]:
    """Return, for each corrected flight, the starts that were reported to have corrected it: one each.

    If a process dies between a commit and its reply, only runs that come later report that commit.
    """
    found: dict[tuple[Any, ...], set[int]] = {}
    for event in all_events():
        if event.kind in ("corrected", "corrected before"):
            found.setdefault(tuple(event.values["key"]), set()).add(event.values["start_ts"])
    return found


def await_file(path: Path) -> None:
    deadline_s = time.monotonic() + AWAITED_S_MAX
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{path} did not appear within {AWAITED_S_MAX} s")
        time.sleep(0.005)


def main(path: str, *numbers: str) -> None:
    keys = json.loads(Path(path).read_text())
    failures: list[BaseException] = []

    def guarded(seed: int) -> None:
        try:
            work(db, keys, seed)
        except BaseException as error:
            failures.append(error)
            raise

    with pyomid.connect(url()) as db:
        note(LANE, "started")
        if awaited := os.environ.get("DEMO_AWAITS"):
            await_file(Path(awaited))
        threads = [threading.Thread(target=guarded, args=(seed,)) for seed in map(int, numbers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise SystemExit(1)
        note(LANE, "finished")


if __name__ == "__main__":
    main(*sys.argv[1:])
