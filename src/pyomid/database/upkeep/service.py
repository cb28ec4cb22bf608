"""Upkeep in the background: rounds of compaction, expiry and sanitizing, which only the process that holds the *turn*
does.

    acquire the turn ─► do what is due, part by part ─► wait ─► …     at a stop, the turn is released
        ▲                    │ the turn or the store is lost
        └────────────────────┘

                    a folder (`folder`)                       a cluster: `pyomid compact|sanitize URL --every SECONDS`
    process         any that has it open; others stand by     any; others stand by
    turn            the folder's lock                         a znode
    a part is due   after enough new versions                 when its last record is `every_s` old and W has moved
    pace            a share of one core                       none

The watermarks that compaction records are its state (`RegionWatermark`). While W stays the same, there is nothing to
do. So a process that takes over, even after a kill, continues with the remaining regions, the longest-waiting first. A
region that split is due at once. `jobs.compacted` does the compaction itself, also for the command line and Spark.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final, Protocol

from pyomid.coroutines import Effect, Handler, drive
from pyomid.crashpoints import crash_point
from pyomid.database.database import Database
from pyomid.database.driver import Driver, port_handlers
from pyomid.database.upkeep.expire import expire_keys
from pyomid.database.upkeep.jobs import (
    Compaction,
    Partition,
    chosen_tables,
    compact_partition,
    compacted,
    partitions_of,
    sanitize,
)
from pyomid.errors import OmidError, Unavailable, UnknownTable
from pyomid.ports import Deployment
from pyomid.protocol import effects
from pyomid.protocol.compaction import RegionCleaned
from pyomid.protocol.reading import CommitCache
from pyomid.types import KeyRange, TableInfo

log = logging.getLogger(__name__)

LOOK_S_MAX: Final = 60.0
"""Maximum time between two checks for split regions and new tables."""
AFTER_ERROR_S: Final = 30.0


class Turn(Protocol):
    """A lock among all processes that could do the same upkeep."""

    def acquire(self, stop: threading.Event) -> bool: ...

    def is_held(self) -> bool: ...

    def release(self) -> None: ...


class Stopped(Exception):
    """Raised if the process ends or has lost the turn; the next process continues."""


@dataclass(slots=True)
class UpkeepReport:
    """Counts since the process began, which `status` of a folder shows."""

    passes: int = 0
    versions_dropped: int = 0
    entries_deleted: int = 0
    keys_expired: int = 0
    failures: int = 0
    busy_seconds: float = 0.0


class Rounds(ABC):
    """One kind of upkeep, done in rounds. It raises `Stopped` between two batches if `stop` is set.

    `after_error_s` is the time to wait after an error before everything, or the part that failed, is retried.
    """

    def __init__(
        self, stop: threading.Event, *, after_error_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.report: Final = UpkeepReport()
        self.after_error_s: Final = after_error_s
        self._stop = stop
        self._clock = clock
        self._failed: dict[str, tuple[str, float]] = {}
        """For each job that failed, the error, and the time of the next try."""

    @abstractmethod
    def round(self) -> float:
        """Do the work that is due. Return the number of seconds for which the next round may wait."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections that stay open between two rounds."""

    def pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopped

    def rest(self) -> None:
        """Pause, or raise `Stopped`; called before each batch, to pace the work."""
        if self._stop.is_set():
            raise Stopped

    def paced(self, handlers: Mapping[type[Effect[Any]], Handler]) -> dict[type[Effect[Any]], Handler]:
        """Return the handlers with a `rest` before each batch that is read."""
        read_range = handlers[effects.ReadRange]

        def rest_then_read(effect: effects.ReadRange) -> Any:
            self.rest()
            return read_range(effect)

        return {**handlers, effects.ReadRange: rest_then_read}

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """A context that contains errors of the job `what`: a failing job does not block other upkeep, and its error is
        logged once. A table that was dropped meanwhile is skipped."""
        try:
            yield
            self._failed.pop(what, None)
        except UnknownTable:
            pass
        except Unavailable:
            raise
        except OmidError as error:
            self.report.failures += 1
            if self._failed.get(what, ("",))[0] != str(error):
                log.warning("%s failed; other upkeep continues: %s", what, error)
            self._failed[what] = str(error), self._clock() + self.after_error_s

    def is_failing(self, what: str) -> bool:
        """Whether the job `what` failed, and its next try is not due yet."""
        return self._failed.get(what, ("", 0.0))[1] > self._clock()


EXPIRY_OF_KEYS: Final = "expiry of idempotency keys"


def compaction_of(table: str) -> str:
    """Return the name of a table's compaction for `Rounds.alone`."""
    return f"compaction of table {table!r}"


def serve(rounds: Rounds, turn: Turn, stop: threading.Event) -> None:
    """Do rounds while this process holds the turn, until `stop`. Failures are logged and retried: an outage of HBase,
    ZooKeeper or the TSO does not end the service. While the process waits after an error, it does not hold the turn. So
    if only this process fails (its network, an expired ticket), another process works meanwhile."""
    while turn.acquire(stop):
        wait_s = 0.0
        try:
            with closing(rounds):
                while not stop.is_set() and turn.is_held():
                    rounds.pause(rounds.round())
        except Stopped:
            pass
        except OmidError as error:
            if not error.values.get("may_pass", True):
                raise
            rounds.report.failures += 1
            log.warning("upkeep failed and will be retried in %g s: %s", rounds.after_error_s, error)
            wait_s = rounds.after_error_s
        finally:
            turn.release()
        stop.wait(wait_s)


class ClusterRounds(Rounds):
    """Rounds that keep one connection while the process holds the turn. `may_go_on` returns whether it still holds the
    turn."""

    def __init__(
        self,
        open_database: Callable[[], Database],
        every_s: float,
        stop: threading.Event,
        may_go_on: Callable[[], bool],
    ) -> None:
        super().__init__(stop, after_error_s=min(AFTER_ERROR_S, every_s))
        self._every_s = every_s
        self._open_database = open_database
        self._opened: Database | None = None
        self._may_go_on = may_go_on

    @property
    def database(self) -> Database:
        if self._opened is None:
            self._opened = self._open_database()
        return self._opened

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def check(self) -> None:
        if self._stop.is_set() or not self._may_go_on():
            raise Stopped


class CompactionRounds(ClusterRounds):
    """Rounds of compaction. `grace_s` is the `grace_seconds` of `Database.compact`. `tables` None means all tables."""

    def __init__(
        self,
        open_database: Callable[[], Database],
        every_s: float,
        stop: threading.Event,
        may_go_on: Callable[[], bool],
        *,
        tables: Sequence[str] | None = None,
        grace_s: float = 0.0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(open_database, every_s, stop, may_go_on)
        self._tables = tables
        self._grace_s = grace_s
        self._wall_clock = wall_clock
        self._gone: set[str] = set()
        """Missing tables among `tables`, each logged once."""
        self._put_off: set[Partition] = set()
        """Parts whose last cleaning failed. They come last; otherwise one unavailable region would end each round
        before the other parts."""

    def round(self) -> float:
        deployment = self.database._core.deployment
        tables = self._present(deployment)
        self._expire_keys(tables)
        now_s = self._wall_clock()
        due = self._due(deployment, tables, now_s)
        ready = [each for due_s, each in due if due_s <= now_s and not self.is_failing(compaction_of(each.table))]
        if ready:
            report = self._compact(deployment, tables, ready)
            log.info("compacted", extra=_log_fields(report, len(ready)))
        next_s = min((due_s for due_s, _ in due if due_s > now_s), default=now_s + self._every_s) - now_s
        return max(0.0, min(LOOK_S_MAX, self._every_s, next_s))

    def _present(self, deployment: Deployment) -> list[str] | None:
        """Return `tables` without missing tables, which do not block the other tables."""
        if self._tables is None:
            return None
        known = {info.name for info in deployment.catalog.tables()}
        gone = set(self._tables) - known
        for name in sorted(gone - self._gone):
            log.warning("cannot compact table %r, which does not exist", name)
        self._gone = gone
        return [name for name in self._tables if name in known]

    def _due(self, deployment: Deployment, tables: Sequence[str] | None, now_s: float) -> list[tuple[float, Partition]]:
        """Return pairs (due time, part) for the parts that are not clean up to W, the longest-waiting first. If a
        record's time is in the future, a clock was wrong, so the time is ignored."""
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
                    is_ahead = record.recorded_at_s > now_s + self._every_s
                    recorded_s = -self._every_s if is_ahead else record.recorded_at_s
                    since_s = inf if record.watermark >= watermark else recorded_s
                    last_s[record.key_range] = max(since_s, last_s.get(record.key_range, -self._every_s))
            parts = [(last_s.get(each.key_range, -self._every_s) + self._every_s, each) for each in partitions]
            found += [(due_s, each) for due_s, each in parts if due_s < inf]
        self._put_off &= {partition for _, partition in found}
        return sorted(
            found, key=lambda each: (each[1] in self._put_off, each[0], each[1].table, each[1].key_range.start)
        )

    def _compact(self, deployment: Deployment, tables: Sequence[str] | None, ready: Sequence[Partition]) -> Compaction:
        run, cache = partial(drive, handlers=self.paced(port_handlers(deployment))), CommitCache()

        def clean(infos: Sequence[TableInfo], watermark: int | None) -> Iterable[RegionCleaned]:
            present = {(info.name, info.generation) for info in infos}
            for partition in ready:
                self.check()
                what = compaction_of(partition.table)
                if self.is_failing(what) or (partition.table, partition.generation) not in present:
                    continue
                with self.alone(what):
                    self._put_off.add(partition)
                    cleaned = compact_partition(run, cache, partition, watermark)
                    self._put_off.discard(partition)
                    log.debug(
                        "cleaned the region of table %r that begins at key %r",
                        partition.table,
                        partition.key_range.start,
                    )
                    crash_point("client.upkeep.cleaned")
                    yield cleaned

        return compacted(deployment, run, tables, clean, grace_seconds=self._grace_s, sleep=self.pause)

    def _expire_keys(self, tables: Sequence[str] | None) -> None:
        """Shrink old idempotency keys."""
        days = self.database._core.deployment.settings.run_id_days
        if tables is None and days and not self.is_failing(EXPIRY_OF_KEYS):
            with self.alone(EXPIRY_OF_KEYS):
                expire_keys(self.database, 86_400 * days)


class SanitizingRounds(ClusterRounds):
    """Rounds of sanitizing, the first at once and then one every `every_s`."""

    def round(self) -> float:
        deployment = self.database._core.deployment
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
                "unfinished": report.unfinished,
                "seconds": round(report.seconds, 3),
            },
        )
        return self._every_s


def _log_fields(report: Compaction, regions: int) -> dict[str, Any]:
    return {
        "regions": regions,
        "cells": report.cells,
        "dropped": report.cells_dropped,
        "healed": report.cells_healed,
        "tables": sorted(table.table for table in report.tables),
        "seconds": round(report.seconds, 3),
        "held_back": report.held_back,
        "unfinished": report.unfinished,
    }
