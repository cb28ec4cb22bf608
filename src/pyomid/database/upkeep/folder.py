"""Upkeep of a folder: one of the processes that have the folder open compacts and sanitizes it, a little at a time,
when enough versions can be dropped.

    every second    count the new versions that W has passed (`Gain`)
    if enough       compact the parts of tables that are due (`compact_region`)
    once a minute   forget branches, if there are many (`sanitize`)
    at intervals    shrink old idempotency keys (`expire`)
    at intervals    compact the tables in which values have expired (`_find_expired`)

Upkeep is a client like any other: it may die at any point, as any compactor may. Other compactors may run at the same
time.

Between two batches, upkeep pauses, so that it uses at most `share` of one core and of the store's writer lock. A part
of a table becomes due after enough new versions anywhere in the folder. The threshold grows with the part's size, and
each time a pass over the part drops little (`Part`). So a table without changes costs little.

The next writes reuse pages that a pass frees. The file does not shrink.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, Final

from pyomid.coroutines import drive
from pyomid.database.database import Database
from pyomid.database.driver import Run, port_handlers
from pyomid.database.upkeep.expire import expire_keys
from pyomid.database.upkeep.jobs import Partition, chosen_tables, compact_partition, partitions_of
from pyomid.database.upkeep.service import EXPIRY_OF_KEYS, Rounds, Stopped, compaction_of, serve
from pyomid.database.upkeep.unfinished import finish_changes, unfinished_changes
from pyomid.errors import Misuse, OmidError, Unavailable
from pyomid.ports import Deployment
from pyomid.protocol import effects
from pyomid.protocol.compaction import RegionCleaned
from pyomid.protocol.expiry import droppable_to
from pyomid.protocol.reading import CommitCache
from pyomid.protocol.sanitize import sanitize_entries
from pyomid.protocol.timestamps import NS_PER_S
from pyomid.system import is_shared, open_own
from pyomid.types import TableInfo

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
BATCH_RECORDS: Final = 1_000
"""Number of records in a batch. A batch is one write transaction of the store, which holds the writer lock for some
milliseconds."""
REST_S_MAX: Final = 5.0
GAIN_MIN: Final = 250
"""Minimum number of new versions after which a pass runs."""
GAIN_SHARE: Final = 0.2
"""A part is due after this many new versions per row, as in PostgreSQL's autovacuum."""
USEFUL_SHARE: Final = 0.1
"""If a pass drops a smaller share of a part's cells, the part's patience doubles; if it drops at least twice this
share, the patience halves."""
PATIENCE_MAX: Final = 64
SAMPLES_MAX: Final = 512
ENTRIES_MIN: Final = 1_000
SANITIZE_EVERY_S: Final = 60.0
EXPIRED_EVERY_S: Final = 10.0
"""How often the catalog is checked for tables in which values have expired."""
EXPIRED_SHARE: Final = 0.1
"""A table with expired values is cleaned again after this share of its time to live."""
WHOLE_EVERY_S: Final = 600.0
AFTER_ERROR_S: Final = 60.0
TURN_FILE: Final = "upkeep"
TURN_S: Final = 2.0
CLOSE_S: Final = 0.1
"""If a program was too short for a round of upkeep, it may do upkeep for this time at its end."""
STATE_FILE: Final = "upkeep.json"
STATE_BYTES_MAX: Final = 16 << 20


class Gain:
    """Counts the stored versions that no pass has checked yet, but that a pass with the current W would check.

    `written` is the number of the folder's records plus all deleted records, so it grows with each write. Versions that
    were written while the newest start was s can be checked once W is at or above s.
    """

    def __init__(self, looked_at: int = 0) -> None:
        self.looked_at = looked_at
        """The value of `written` that the last pass reached."""
        self._samples: deque[tuple[int, int]] = deque()
        """Samples (newest start, written), both ascending."""

    def note(self, written: int, newest_ts: int) -> None:
        """Add a sample. `written` was counted before `newest_ts` was read, so it includes no later start."""
        if not self._samples or newest_ts > self._samples[-1][0]:
            self._samples.append((newest_ts, written))
        if len(self._samples) > SAMPLES_MAX:
            self._samples = deque(islice(self._samples, 0, None, 2))

    def of(self, watermark: int) -> int:
        """Return the number of versions at or below `watermark` that were written since the last pass."""
        return max(0, self.below(watermark) - self.looked_at)

    def passed(self, watermark: int) -> None:
        """Note that a pass with this W has ended."""
        self.looked_at = max(self.looked_at, self.below(watermark))
        while len(self._samples) > 1 and self._samples[1][0] <= watermark:
            self._samples.popleft()

    def below(self, watermark: int) -> int:
        """Return `written` in the last sample that W has passed."""
        return max((written for newest_ts, written in self._samples if newest_ts <= watermark), default=0)


@dataclass(slots=True)
class Part:
    """A part of a table, with its state at its last cleaning. `looked_at` is the newest value of `Gain.written` that W
    had passed at that cleaning."""

    rows: int = 0
    looked_at: int = 0
    patience: int = 1

    def is_due(self, written: int) -> bool:
        """Whether the part is due. `written` is the newest value of `Gain.written` that W has passed."""
        return written - self.looked_at >= self.patience * max(GAIN_MIN, GAIN_SHARE * self.rows)

    def note(self, cleaned: RegionCleaned, written: int) -> None:
        share = cleaned.cells_dropped / max(1, cleaned.cells)
        if share < USEFUL_SHARE:
            self.patience = min(2 * self.patience, PATIENCE_MAX)
        elif share >= 2 * USEFUL_SHARE:
            self.patience = max(1, self.patience // 2)
        self.rows, self.looked_at = cleaned.rows, written


class _FolderTurn:
    """The turn among the processes that have the folder open: a lock on the folder's file `upkeep`, which ends with its
    process. The thread of an idle process tries to take the turn every few seconds."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / TURN_FILE
        self._shared = is_shared(folder)
        self._held = -1

    def acquire(self, stop: threading.Event) -> bool:
        while not stop.wait(LOOK_S):
            if self.is_taken():
                return True
            stop.wait(TURN_S)
        return False

    def is_taken(self) -> bool:
        """Take the turn, unless another process has it. Return whether this process took it."""
        with suppress(OSError, Misuse):
            descriptor = open_own(self._file, os.O_RDWR | os.O_CREAT, shared=self._shared)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._held = descriptor
                return True
            except BaseException:
                os.close(descriptor)
                raise
        return False

    def is_held(self) -> bool:
        return self._held >= 0

    def release(self) -> None:
        descriptor, self._held = self._held, -1
        if descriptor >= 0:
            os.close(descriptor)


def unchecked(folder: Path, records: int) -> int:
    """Return how many of a store's `records` no pass of upkeep has checked yet, according to upkeep's state file."""
    with suppress(Exception):
        with open(open_own(folder / STATE_FILE, os.O_RDONLY), "rb") as file:
            return max(0, records - int(json.loads(file.read(STATE_BYTES_MAX))["judged"]))
    return records


class FolderUpkeep(Rounds):
    """The upkeep thread of a folder, in one of the processes that have it open.

    `open_deployment` opens the folder as a client does. `records` counts the records in its store. `share` is the part
    of one core that upkeep may use. `keep_keys_s` is how long idempotency keys are kept whole; 0 means for ever.
    """

    def __init__(
        self,
        folder: Path,
        open_deployment: Callable[[], Deployment],
        records: Callable[[], int],
        *,
        share: float,
        keep_keys_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(threading.Event(), after_error_s=AFTER_ERROR_S, clock=clock)
        self._folder = folder
        self._open = open_deployment
        self._records = records
        self._share = share
        self._expired_s = clock()
        """The time of the next check of tables for expired values."""
        self._commits_seen = -1
        self._last_commit_ts = 0
        """A timestamp at or above every commit so far."""
        self._expired: dict[str, int] = {}
        """For each table with a time to live, the commit up to which the last pass dropped values."""
        self._with_expired: set[str] = set()
        """Tables that the next pass cleans because values have expired."""
        self._may_expire = False
        """Whether there are values that will expire later."""
        self._keep_keys_s = keep_keys_s
        self._keys_s = clock() if keep_keys_s else inf
        """The time of the next check of idempotency keys."""
        self._thread: threading.Thread | None = None
        self._timestamps: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._commits: Callable[[], int] = lambda: 0
        self._asked_horizon = 0
        self._cache = CommitCache(10_000)
        self._deleted = 0
        """Number of records deleted since the process began, by passes or otherwise."""
        self._written: int | None = None
        """`Gain.written` at the last sample. It never decreases."""
        self._parts: dict[tuple[str, str], Part] = {}
        self._sanitized = 0.0
        """When a process last sanitized the folder, in seconds since 1970."""
        self._had_round = False
        self._ends_s = inf
        """The time at which the work must end."""
        self._gain = Gain(self._load())
        self._is_whole = False
        """Whether the next pass cleans all parts, because a part that is not yet due holds H back."""
        self._put_off: set[str] = set()
        """Tables at which a pass was interrupted, for example by a full disk. The next pass cleans them last."""
        self._unfinished: tuple[str, ...] = ()
        self._named: set[str] = set()
        """Sentences about unfinished changes that were logged."""
        self._sanitized_s = clock() - min(SANITIZE_EVERY_S, max(0.0, time.time() - self._sanitized))
        self._whole_s = clock() - WHOLE_EVERY_S
        self._resumed_s = clock()
        self._sampled_s = 0.0

    def start(
        self,
        timestamps: Callable[[], tuple[int, int]],
        commits: Callable[[], int],
    ) -> None:
        """Start the thread. `timestamps` returns the newest timestamp and W. `commits` returns a number that each
        commit changes. Both are called in the new thread."""
        self._timestamps, self._commits = timestamps, commits
        self._thread = threading.Thread(target=self._run, name="pyomid-upkeep", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system cannot start the thread
            log.warning("cannot start background upkeep: %s", error)
            self._thread = None

    def stop(self) -> None:
        """Stop the thread, and wait for the current batch. If the thread had no round yet, do one now, for at most
        `CLOSE_S`: if all programs are that short, no other process does the upkeep that is due."""
        self._stop.set()
        if self._thread is None:
            return
        self._thread.join(REST_S_MAX)
        turn = _FolderTurn(self._folder)
        if self._had_round or self._thread.is_alive() or not turn.is_taken():
            return
        self._stop, self._ends_s = threading.Event(), self._clock() + CLOSE_S
        try:
            self.round()
        except (Stopped, OmidError):
            pass  # the next program continues
        finally:
            turn.release()

    def _run(self) -> None:
        try:
            serve(self, _FolderTurn(self._folder), self._stop)
        except Exception:
            log.exception("upkeep stopped because of a bug; the program continues without it")

    def round(self) -> float:
        """Do the jobs that are due. A job that fails does not block the other jobs."""
        self._had_round = True
        self._sample()
        outage: Unavailable | None = None
        for job in (self._find_expired_if_due, self._sanitize_if_due, self._pass_if_due, self._expire_keys_if_due):
            try:
                job()
            except Unavailable as error:
                outage = outage or error
        if outage is not None:
            raise outage
        return LOOK_S

    def _sanitize_if_due(self) -> None:
        if self._clock() >= self._sanitized_s + SANITIZE_EVERY_S:
            self._sanitized_s, self._sanitized = self._clock(), time.time()
            with self.alone("sanitizing"):
                self._with_deployment(self._sanitize)
            self._save()

    def _pass_if_due(self) -> None:
        watermark = self._timestamps()[1]
        if self._is_whole or self._with_expired or self._gain.of(watermark) >= GAIN_MIN:
            self._with_deployment(self._pass)

    def _expire_keys_if_due(self) -> None:
        if self._clock() >= self._keys_s:
            self._keys_s = self._clock() + max(LOOK_S, self._keep_keys_s / 100)
            with self.alone(EXPIRY_OF_KEYS):
                self._with_deployment(self._expire_keys)

    def close(self) -> None:
        """Do nothing: no connection stays open between rounds."""

    def _find_expired_if_due(self) -> None:
        commits, now_s = self._commits(), self._clock()
        if now_s < self._expired_s or not (self._may_expire or commits != self._commits_seen):
            return
        self._expired_s = now_s + EXPIRED_EVERY_S
        if commits != self._commits_seen:
            self._commits_seen, self._last_commit_ts = commits, time.time_ns()
        self._with_deployment(self._find_expired)

    def _find_expired(self, deployment: Deployment) -> None:
        """Find the tables with expired values that a pass should drop: after each tenth of the time to live, and when
        the last value has expired. In an idle folder, this call draws a start, so that W follows."""
        newest_ts, watermark = self._timestamps()
        self._may_expire = is_late = False
        for info in deployment.catalog.tables():
            if not info.ttl_seconds or self._expired.get(info.name, 0) >= self._last_commit_ts:
                continue
            self._may_expire = True
            if self.is_failing(compaction_of(info.name)):
                continue
            if self._is_worth_a_pass(info, watermark):
                self._with_expired.add(info.name)
            elif self._is_worth_a_pass(info, time.time_ns()) and not self._is_worth_a_pass(info, newest_ts):
                is_late = True
        if is_late:
            deployment.tso.begin().end()

    def _is_worth_a_pass(self, info: TableInfo, watermark: int) -> bool:
        dropped, now = self._expired.get(info.name, 0), droppable_to(info, watermark)
        tenth = int((info.ttl_seconds or 0) * EXPIRED_SHARE * NS_PER_S)
        return now >= min(self._last_commit_ts, dropped + tenth) and now > dropped

    def _expire_keys(self, deployment: Deployment) -> None:
        self._resumed_s = self._clock()
        with Database(deployment) as database:
            expired = expire_keys(database, self._keep_keys_s, rest=self.rest)
        self.report.keys_expired += expired

    # ── when ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _sample(self) -> None:
        self._sampled_s = self._clock()
        written = self._records() + self._deleted
        known = [self._gain.looked_at, *(max(part.rows, part.looked_at) for part in self._parts.values())]
        if self._written is None and max(known) > written:  # the folder is older than the state file (restored)
            self._gain, self._parts = Gain(), {}
        gone = max(0, (self._written or 0) - written)  # deleted by others than passes: a table was dropped
        self._deleted += gone
        self._written = written + gone
        self._gain.note(self._written, self._timestamps()[0])

    # ── passes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _with_deployment(self, work: Callable[[Deployment], Any]) -> Any:
        with closing(self._open()) as deployment:
            return work(deployment)

    def _pass(self, deployment: Deployment) -> None:
        began_s = self._resumed_s = self._clock()
        watermark, _ = deployment.leader_state.read_watermarks()
        written = self._gain.below(watermark)
        with_expired, self._with_expired = self._with_expired, set()
        run = partial(drive, handlers=self.paced(port_handlers(deployment)))
        present: dict[tuple[str, str], Part] = {}
        dropped = 0
        try:
            infos = chosen_tables(deployment.catalog, None)
            for info in sorted(infos, key=lambda each: each.name in self._put_off):
                what = compaction_of(info.name)
                if not self.is_failing(what):
                    self._put_off.add(info.name)
                    always = self._is_whole or info.name in with_expired
                    with self.alone(what):
                        for partition in partitions_of(deployment, info):
                            dropped += self._clean_if_due(run, partition, present, written, always=always)
                            if always and partition.expired_to:
                                self._expired[info.name] = partition.expired_to
                    self._put_off.discard(info.name)
                if self.is_failing(what):
                    present |= {key: part for key, part in self._parts.items() if key[0] == info.name}
        except (Stopped, Unavailable):
            self._parts |= present
            self._save()
            raise
        self._parts = present
        self._is_whole = False
        self._gain.passed(watermark)
        self.report.passes += 1
        self._save()
        if dropped:
            seconds = self._clock() - began_s
            log.info("compacted", extra={"watermark": watermark, "dropped": dropped, "seconds": seconds})

    def _clean_if_due(
        self, run: Run, partition: Partition, present: dict[tuple[str, str], Part], written: int, *, always: bool
    ) -> int:
        """Clean a part if it is due, or in any case if `always`. Return the number of versions that were dropped."""
        key = (partition.table, partition.key_range.start.hex())
        part = present[key] = self._parts.get(key) or Part()
        if not (always or part.is_due(written)):
            return 0
        cleaned = self._compact(run, partition)
        part.note(cleaned, written)
        return cleaned.versions_dropped

    def _compact(self, run: Run, partition: Partition) -> RegionCleaned:
        cleaned = compact_partition(run, self._cache, partition, rows_max=BATCH_RECORDS)
        self._deleted += cleaned.versions_dropped
        self.report.versions_dropped += cleaned.versions_dropped
        return cleaned

    def _sanitize(self, deployment: Deployment) -> None:
        """Forget branches that no record needs. If a part holds H back, the next pass cleans all parts."""
        for sentence in finish_changes(deployment):
            log.info("upkeep %s", sentence)
        unfinished = unfinished_changes(deployment)
        for sentence in unfinished:
            if sentence in self._unfinished and sentence not in self._named:  # only if a second round finds it too
                self._named.add(sentence)
                log.warning("%s", sentence)
        self._unfinished = unfinished
        if next(islice(deployment.commit_table.entries(), ENTRIES_MIN, None), None) is None:
            return
        handlers = port_handlers(deployment)
        advance = handlers[effects.AdvanceHorizon]

        def advance_once(effect: effects.AdvanceHorizon) -> Any:
            if effect.horizon <= self._asked_horizon:
                return 0
            asked, self._asked_horizon = self._asked_horizon, effect.horizon
            try:
                return advance(effect)
            except Unavailable:  # other errors would recur
                self._asked_horizon = asked
                raise

        handlers[effects.AdvanceHorizon] = advance_once
        try:  # nobody retries a commit in a folder
            done = drive(sanitize_entries(now_s=time.time(), retry_bound_s=0.0), handlers)
        except Misuse as error:
            log.info("%s", error)
            return
        self.report.entries_deleted += done.entries_deleted
        if self._clock() >= self._whole_s + WHOLE_EVERY_S and done.held_back_by.keys() - done.too_young.keys():
            self._is_whole, self._whole_s = True, self._clock()

    def rest(self) -> None:
        """Pause so long that the work since the last pause stays within `share` of a core."""
        if self._ends_s < inf:
            if self._clock() >= self._ends_s:
                raise Stopped
            return
        worked_s = self._clock() - self._resumed_s
        self.report.busy_seconds += worked_s
        self.pause(min(worked_s * (1 - self._share) / self._share, REST_S_MAX))
        self._resumed_s = self._clock()
        if self._resumed_s >= self._sampled_s + LOOK_S:
            self._sample()

    # ── state for the next process; losing it costs one pass ─────────────────────────────────────────────────────

    def _load(self) -> int:
        """Load the parts from the state file, and return `looked_at`. If the file is missing or invalid in any way,
        load no parts and return 0."""
        with suppress(Exception):
            with open(open_own(self._folder / STATE_FILE, os.O_RDONLY), "rb") as file:
                state = json.loads(file.read(STATE_BYTES_MAX))
            passed = int(state["judged"])
            self._sanitized = float(state.get("sanitized", 0))
            self._expired = {str(table): int(up_to) for table, up_to in state.get("expired", {}).items()}
            parts = {
                (str(table), str(start)): Part(
                    max(0, int(rows)), int(looked_at), min(max(1, int(patience)), PATIENCE_MAX)
                )
                for table, start, rows, looked_at, patience in state["parts"]
            }
            self._parts = parts
            return passed
        return 0

    def _save(self) -> None:
        deleted = self._deleted  # the next process counts from the remaining records
        parts = [(*key, part.rows, part.looked_at - deleted, part.patience) for key, part in self._parts.items()]
        state = {"judged": self._gain.looked_at - deleted, "parts": parts, "expired": self._expired}
        state["sanitized"] = self._sanitized
        with suppress(OSError, Misuse):
            fd = open_own(self._folder / STATE_FILE, os.O_WRONLY | os.O_CREAT, shared=is_shared(self._folder))
            with open(fd, "wb") as file:
                file.write(json.dumps(state).encode())
                file.truncate()
