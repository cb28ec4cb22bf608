"""Upkeep as a service: periodic compaction or sanitizing, by one of several processes, which holds a lock, the *turn*.

    stand by ─► acquire the turn ─► what is due, region by region ─► wait ─► …        SIGTERM: the turn is released
        ▲                                │ the turn or the store is lost
        └────────────────────────────────┘

The only state is the watermarks that compaction records (`RegionWatermark`). A region is due when its last record is
`every_s` old and W has moved since. So a process that takes over, even after a kill, continues with the remaining
regions, the longest-waiting first; a region that split is due at once.

The compaction itself is `jobs.compacted`, as for the command line and Spark.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from math import inf
from typing import Any, Final, Protocol

from pyomid.client.database import Database
from pyomid.client.drive import Driver
from pyomid.client.upkeep.jobs import Compaction, compact_partition, compacted, sanitize
from pyomid.client.upkeep.partitions import Partition, chosen_tables, partitions_of
from pyomid.crashpoints import crash_point
from pyomid.errors import OmidError, Unavailable, UnknownTable
from pyomid.ports import Deployment
from pyomid.protocol import effects
from pyomid.protocol.compaction import RegionCleaned
from pyomid.protocol.expiry import POINTS_IN_TTL
from pyomid.protocol.reading import CommitCache
from pyomid.types import KeyRange, TableInfo

log = logging.getLogger(__name__)

LOOK_S_MAX: Final = 60.0
"""Maximum time between two checks for split regions, new tables, and values to expire."""
AFTER_ERROR_S: Final = 30.0


class Turn(Protocol):
    """A lock among all processes that could do the same work."""

    def acquire(self, stop: threading.Event) -> bool: ...

    def is_held(self) -> bool: ...

    def release(self) -> None: ...


class Stopped(Exception):
    """The process ends, or lost the turn; the next process continues."""


class Rounds:
    """One kind of upkeep. `round` returns how many seconds the next round may wait; it raises `Stopped` at any point
    where `stop` is set or `may_go_on` returns False."""

    def __init__(self, every_s: float, stop: threading.Event, may_go_on: Callable[[], bool]) -> None:
        self.every_s = every_s
        self._stop = stop
        self._may_go_on = may_go_on

    def round(self, database: Database) -> float:
        raise NotImplementedError

    def check(self) -> None:
        if self._stop.is_set() or not self._may_go_on():
            raise Stopped

    def pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopped


def serve(open_database: Callable[[], Database], turn: Turn, rounds: Rounds, stop: threading.Event) -> None:
    """Work while this process holds the turn, until `stop`. Failures are logged and retried: an outage of HBase,
    ZooKeeper or the TSO does not end the service. While it waits after an error, the process does not hold the turn: if
    only this process fails (its network, an expired ticket), another one works meanwhile."""
    while turn.acquire(stop):
        log.info("this process acquired the turn")
        wait_s = 0.0
        try:
            with closing(open_database()) as database:
                while not stop.is_set() and turn.is_held():
                    rounds.pause(rounds.round(database))
        except Stopped:
            pass
        except OmidError as error:
            if not error.values.get("may_pass", True):
                raise
            log.warning("upkeep failed, will retry: %s", error)
            wait_s = min(AFTER_ERROR_S, rounds.every_s)
        finally:
            turn.release()
        stop.wait(wait_s)


class CompactionRounds(Rounds):
    """Compaction. `grace_s`: as `grace_seconds` of `Database.compact`. `tables`: None is all."""

    def __init__(
        self,
        every_s: float,
        stop: threading.Event,
        may_go_on: Callable[[], bool],
        *,
        tables: Sequence[str] | None = None,
        grace_s: float = 0.0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(every_s, stop, may_go_on)
        self._tables = tables
        self._grace_s = grace_s
        self._wall_clock = wall_clock
        self._failed: dict[str, str] = {}
        """Tables whose compaction failed in the last round, and why."""
        self._gone: set[str] = set()
        """Missing tables among `tables`, each logged once."""
        self._put_off: set[Partition] = set()
        """Parts that were unavailable. They come last; otherwise one unavailable region would end each round before the
        others."""

    def round(self, database: Database) -> float:
        deployment = database.deployment
        tables = self._present(deployment)
        expires_in_s = self._expire(database, tables)
        now_s = self._wall_clock()
        due = self._due(deployment, tables, now_s)
        ready = [partition for due_s, partition in due if due_s <= now_s]
        if ready:
            report = self._compact(deployment, tables, ready)
            log.info("compacted", extra=_log_fields(report, len(ready)))
        next_s = min((due_s for due_s, _ in due if due_s > now_s), default=now_s + self.every_s) - now_s
        pause_s = min(LOOK_S_MAX, self.every_s, next_s, expires_in_s)
        return max(pause_s, min(AFTER_ERROR_S, self.every_s)) if self._failed else max(0.0, pause_s)

    def _present(self, deployment: Deployment) -> list[str] | None:
        """Return `tables` without missing ones, which do not block the others."""
        if self._tables is None:
            return None
        known = {info.name for info in deployment.catalog.tables()}
        gone = set(self._tables) - known
        for name in sorted(gone - self._gone):
            log.warning("cannot compact table %r, which does not exist", name)
        self._gone = gone
        return [name for name in self._tables if name in known]

    def _due(self, deployment: Deployment, tables: Sequence[str] | None, now_s: float) -> list[tuple[float, Partition]]:
        """Return (due time, part) of the parts that are not clean up to W, the longest-waiting first. A record from the
        future comes from a wrong clock, so its time is ignored."""
        found: list[tuple[float, Partition]] = []
        watermark, _ = deployment.leader_state.read_watermarks()
        for info in chosen_tables(deployment.catalog, tables):
            try:
                partitions = partitions_of(deployment, info)
                records = deployment.catalog.region_watermarks(info.name)
            except UnknownTable:  # dropped meanwhile
                continue
            last_s: dict[KeyRange, float] = {}
            for record in records:
                if record.generation == info.generation:
                    is_ahead = record.recorded_at_s > now_s + self.every_s
                    recorded_s = -self.every_s if is_ahead else record.recorded_at_s
                    since_s = inf if record.watermark >= watermark else recorded_s
                    last_s[record.key_range] = max(since_s, last_s.get(record.key_range, -self.every_s))
            parts = [(last_s.get(each.key_range, -self.every_s) + self.every_s, each) for each in partitions]
            found += [(due_s, each) for due_s, each in parts if due_s < inf]
        self._put_off &= {partition for _, partition in found}
        return sorted(
            found, key=lambda each: (each[1] in self._put_off, each[0], each[1].table, each[1].key_range.start)
        )

    def _compact(self, deployment: Deployment, tables: Sequence[str] | None, ready: Sequence[Partition]) -> Compaction:
        driver, cache = Driver(deployment), CommitCache()
        read_range = driver.handlers[effects.ReadRange]

        def check_then_read(effect: effects.ReadRange) -> Any:
            if self._stop.is_set():
                raise Stopped
            return read_range(effect)

        driver.handlers[effects.ReadRange] = check_then_read
        self._failed = {}

        def clean(infos: Sequence[TableInfo], watermark: int | None) -> Iterable[RegionCleaned]:
            present = {(info.name, info.generation) for info in infos}
            for partition in ready:
                self.check()
                if partition.table not in self._failed and (partition.table, partition.generation) in present:
                    yield from self._clean(driver, cache, partition, watermark)

        return compacted(deployment, driver.run, tables, clean, grace_seconds=self._grace_s, sleep=self.pause)

    def _clean(
        self, driver: Driver, cache: CommitCache, partition: Partition, watermark: int | None
    ) -> Iterator[RegionCleaned]:
        """Compact a part; a failing table does not block the others."""
        try:
            cleaned = compact_partition(driver.run, cache, partition, watermark)
        except Unavailable:
            self._put_off.add(partition)
            raise
        except UnknownTable:
            return
        except OmidError as error:
            self._failed[partition.table] = str(error)
            log.warning("compaction of table %r failed; other tables continue: %s", partition.table, error)
            return
        self._put_off.discard(partition)
        log.debug("cleaned %r from %r", partition.table, partition.key_range.start)
        crash_point("client.upkeep.cleaned")
        yield cleaned

    def _expire(self, database: Database, tables: Sequence[str] | None) -> float:
        """Expire values and keys. Return the seconds until the next call."""
        database.expire(tables)
        times = [info.ttl_seconds for info in chosen_tables(database.deployment.catalog, tables)]
        return max(1.0, min((ttl_s / POINTS_IN_TTL for ttl_s in times if ttl_s), default=LOOK_S_MAX))


class SanitizingRounds(Rounds):
    """Sanitizing, at once and then every `every_s`."""

    def round(self, database: Database) -> float:
        deployment = database.deployment
        self.check()
        report = sanitize(deployment, Driver(deployment).run)
        log.info(
            "sanitized",
            extra={
                "watermark": report.watermark,
                "horizon": report.horizon,
                "deleted": report.entries_deleted,
                "left": report.entries_left,
                "held_back_by": report.held_back_by,
                "seconds": round(report.seconds, 3),
            },
        )
        return self.every_s


def _log_fields(report: Compaction, regions: int) -> dict[str, Any]:
    return {
        "regions": regions,
        "cells": report.cells,
        "dropped": report.cells_dropped,
        "healed": report.cells_healed,
        "tables": sorted(table.table for table in report.tables),
        "seconds": round(report.seconds, 3),
        "held_back": report.held_back,
    }
