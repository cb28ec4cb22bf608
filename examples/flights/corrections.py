"""A Python service without Spark: cancels flights and adjusts both totals, each flight in one transaction.

    python -m examples.flights.corrections KEYS.json THREAD…

Several threads, of one program or of two, cancel every flight, in different orders, under one idempotency key: all but
one find it done. They also conflict with the pipelines on the totals. A commit request is noted just before it is sent,
so that the demo can find out what became of it when a process dies.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

from examples.flights.again import again
from examples.flights.events import note
from examples.flights.settings import CLEARED, DAILY, FLIGHTS, ROUTES, url

import pyomid
from pyomid.crashpoints import arm_action
from pyomid.rows.row_key import key_layout
from pyomid.rows.values import decode_value, encode_value

LANE = "corrections"

_attempt = threading.local()
"""The thread's current work: `thread`, its number, and `start_ts` and `key` of its transaction."""


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
        stored = self._table.get(row)
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


def note_commit_request() -> None:
    """Note that a commit request is about to be sent."""
    if getattr(_attempt, "start_ts", 0):
        note(LANE, "committing", thread=_attempt.thread, start_ts=_attempt.start_ts, key=_attempt.key)


def cancel(tx: pyomid.Transaction, origin: str, time_hour: datetime, carrier: str, flight: int) -> bool:
    """Cancel one flight, and adjust its day and its route; False if it was already cancelled."""
    _attempt.start_ts = tx.start_ts
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
    _attempt.thread, _attempt.start_ts = seed, 0
    for key in order:
        _attempt.key = key
        origin, time_hour, carrier, flight = key
        moment = datetime.fromisoformat(time_hour)
        run_id = f"cancel {origin} {time_hour} {carrier} {flight}"
        attempt = partial(db.run_once, run_id, cancel, origin, moment, carrier, flight)
        done = again(attempt, interrupted)
        kind = "corrected" if done is True else "corrected before"
        note(LANE, kind, thread=seed, start_ts=_attempt.start_ts, key=key)


def interrupted(error: pyomid.OmidError) -> None:
    note(LANE, "interrupted", thread=_attempt.thread, error=type(error).__name__)


def main(path: str, *numbers: str) -> None:
    keys = json.loads(Path(path).read_text())
    failures: list[BaseException] = []

    def guarded(seed: int) -> None:
        try:
            work(db, keys, seed)
        except BaseException as error:
            failures.append(error)
            raise

    arm_action("client.commit.before", note_commit_request)
    with pyomid.connect(url()) as db:
        note(LANE, "started")
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
