"""The whole demo in order; the exit status is 1 if any check fails."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from examples.flights import carriers, corrections, data, faults, months, report, settings
from examples.flights.comparison import Comparison, compare, compare_changes
from examples.flights.events import all_events, count, note
from examples.flights.places import CLUSTER, Fault, Place, Service
from examples.flights.sessions import session
from examples.flights.settings import CONFLICT_LEVEL, FOLDER, PIPELINES, url
from examples.flights.snapshots import SnapshotReader

import pyomid
import pyomid.spark
from pyomid.database.upkeep.jobs import Compaction, Sanitising, table_text
from pyomid.database.upkeep.verification import Verification

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

STILL_S_MAX = 600
"""If no event is noted for this long, the demo is stuck and fails."""


@dataclass(slots=True)
class Run:
    """The results so far; the report is made from them."""

    place: Place
    began: float = field(default_factory=time.time)
    faults: dict[str, Fault] = field(default_factory=dict)
    corrections: list[list[Any]] = field(default_factory=list)
    snapshots: int = 0
    torn: int = 0
    before: Verification | None = None
    after: Verification | None = None
    compaction: Compaction | None = None
    sanitising: Sanitising | None = None
    comparisons: list[Comparison] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        print(f"{time.time() - self.began:6.1f} s  {text}", flush=True)

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            self.failures.append(what)
            self.say(f"FAILED: {what}")


def main(place: Place) -> int:
    """Run the demo in an empty folder, with the place's servers running; return the exit status."""
    run = Run(place)
    run.say(f"unpacking the flights of 2013; {place.title}: {url()}")
    data.unpack()
    spark = session("demo")
    spark.sparkContext.setJobDescription("demo")
    data.divide_by_month(spark)
    load_small_tables(run, spark)
    run.corrections = chosen_corrections(spark)
    with pyomid.connect(url()) as db, db.begin(lease=True):
        since = db.bookmark()  # the open transaction keeps all changes from here on
        ingest(run, spark, since)
        run.comparisons += compare_changes(spark, since, run.corrections)
    clean(run, spark)
    compare_all(run, spark)
    summary(run)
    report.write(run)
    run.say(f"report: {settings.REPORT}")
    spark.stop()
    return 1 if run.failures else 0


def load_small_tables(run: Run, spark: SparkSession) -> None:
    """Load four tables in one transaction: a reader sees all of them or none."""

    def load(tx: pyomid.spark.SparkTransaction) -> dict[str, int]:
        rows = {}
        for name, (_, key) in data.SMALL_TABLES.items():
            rows[name] = tx.write(data.small_table(spark, name).dropDuplicates(key), name, row_key=key).rows
        months.create_tables(tx, data.flights(spark, 1))
        return rows

    begun, db = time.time(), pyomid.spark.connect(spark, url())
    rows = db.run_once("small-tables", load, conflict_level=CONFLICT_LEVEL)
    note("demo", "small tables", seconds=time.time() - begun)
    run.say(f"four tables in one transaction: {rows}")


def chosen_corrections(spark: SparkSession) -> list[list[Any]]:
    """Return operated flights of each pipeline's first month, spread over days and origins."""
    first = [pipeline[0] for pipeline in PIPELINES.values()]
    rows = (
        data.flights(spark)
        .where(f"month in ({','.join(map(str, first))}) and dep_time is not null")
        .orderBy("flight", "time_hour", "origin", "carrier")
        .selectExpr("origin", "date_format(time_hour, \"yyyy-MM-dd'T'HH:mm:ssXXX\") as time_hour", "carrier", "flight")
        .collect()
    )
    chosen = rows[:: max(1, len(rows) // settings.CORRECTIONS)][: settings.CORRECTIONS]
    return [[row["origin"], row["time_hour"], row["carrier"], row["flight"]] for row in chosen]


# --- pipelines, stream, reader, corrections and faults, all at once ----------------------------------------


def ingest(run: Run, spark: SparkSession, since: pyomid.Bookmark) -> None:
    run.faults = {
        "worker": Fault("worker", "kill -9 of a Spark Python worker after it wrote a batch"),
        "driver": Fault("driver", "kill -9 of a driver before its commit"),
        "answer": Fault("answer", "kill -9 of a driver between the reply to its commit and the shadow cells"),
        "stream": Fault("stream", "kill -9 of a stream's driver between a batch's commit and its checkpoint"),
        **{fault.name: fault for fault in run.place.faults()},
    }
    pipelines = {
        "A": start_pipeline(
            "A",
            **faults.environment("spark.commit.before:2", "driver"),
            **faults.environment("spark.task.after_write:2", "worker", in_workers=True),
        ),
        "B": start_pipeline("B", **faults.environment("client.commit.answered:2", "answer")),
    }
    stream = start_stream(since, **faults.environment("client.commit.answered:2", "stream"))
    reader = SnapshotReader(spark)
    reader.start()
    services: dict[str, faults.Process] = {}
    shown = 0
    noted_s = time.monotonic()
    is_in = False
    while not (is_in and stream.ended and not stream.killed):
        time.sleep(0.2)
        before, shown = shown, show_progress(run, shown)
        noted_s = time.monotonic() if shown > before else noted_s
        for name, process in list(pipelines.items()):
            if process.ended and process.killed:
                pipelines[name] = restarted(run, spark, name)
        if stream.ended and stream.killed:
            stream = restarted_stream(run, since)
        for name, process in list(services.items()):
            if process.ended and process.killed:
                services[name] = restarted_service(run, name)
        is_in = bool(services) and all(p.ended for p in (*pipelines.values(), *services.values()))
        if is_in and not settings.ALL_IN.exists():
            reader.stop()
            settings.ALL_IN.touch()
        if not services and all(count("committed", name) + count("already", name) for name in PIPELINES):
            services = start_services(run)
        run.place.watch()
        if time.monotonic() > noted_s + STILL_S_MAX:
            run.require(False, f"pipelines, stream and corrections noted something within {STILL_S_MAX} s")
            for process in (*pipelines.values(), *services.values(), stream):
                process.popen.kill()
            break
    reader.stop()
    show_progress(run, shown)
    run.snapshots, run.torn = reader.checked, reader.torn
    for process in (*pipelines.values(), *services.values(), stream):
        run.require(process.popen.returncode == 0, f"process {process.name} ended well, see {process.log}")
    run.require(reader.error is None, f"the reader ended well: {reader.error}")
    run.require(run.torn == 0 and run.snapshots > 0, f"{run.snapshots} snapshots, {run.torn} of them torn")
    finish_faults(run)


def start_pipeline(name: str, **environment: str) -> faults.Process:
    wanted = ",".join(map(str, PIPELINES[name]))
    return faults.start(name, "examples.flights.pipeline", name, wanted, environment=environment)


def start_stream(since: pyomid.Bookmark, **environment: str) -> faults.Process:
    place = str(since)
    return faults.start("carriers", "examples.flights.carriers", place, environment=environment)


def restarted_stream(run: Run, since: pyomid.Bookmark) -> faults.Process:
    """Restart the stream from its checkpoint, which does not record that its last batch has committed."""
    run.faults["stream"].hit = faults.was_hit("stream")
    note(carriers.LANE, "killed")
    run.say("the stream was killed and is restarted")
    return start_stream(since)


def start_services(run: Run) -> dict[str, faults.Process]:
    path = FOLDER / "corrections.json"
    path.write_text(json.dumps(run.corrections))
    run.say(f"service without Spark: {len(run.corrections)} flights to cancel, several threads racing for each")
    return run.place.start_services(start_service)


def start_service(service: Service) -> faults.Process:
    words = [str(FOLDER / "corrections.json"), *map(str, service.threads)]
    return faults.start(service.name, "examples.flights.corrections", *words, environment=service.environment)


def restarted_service(run: Run, name: str) -> faults.Process:
    """Start a killed program again. It does everything anew, under the same ids."""
    (service,) = (each for each in run.place.services() if each.name == name)
    note(corrections.LANE, "killed", thread=service.threads[0], pid=name)
    run.say(f"the service's process {name!r} was killed and is restarted")
    return start_service(service)


def restarted(run: Run, spark: SparkSession, name: str) -> faults.Process:
    """Look up the open month of a pipeline whose driver was killed, and start the same program again."""
    fault = run.faults["driver" if name == "A" else "answer"]
    fault.hit = faults.was_hit(fault.name)
    note(name, "killed")
    dead = faults.unfinished(name)
    if dead is not None:
        found = faults.outcome(spark, dead.values["month"])
        at = f" at {found.commit_ts}" if found.commit_ts else ""
        fault.outcome = f"month {dead.values['month']} (start {dead.values['start_ts']}): {found.state.value}{at}"
        fault.branches = written_by(name, dead.values["start_ts"])
        run.say(f"pipeline {name} was killed; {fault.outcome}; restarted")
    return start_pipeline(name)


def written_by(name: str, start_ts: int) -> set[int]:
    return {
        branch
        for event in all_events()
        if event.lane == name and event.kind == "written" and event.values["start_ts"] == start_ts
        for branch in event.values["branches"]
    }


def finish_faults(run: Run) -> None:
    worker = run.faults["worker"]
    worker.hit = faults.was_hit("worker")
    worker.outcome = "the task was retried under another branch"
    corrected = corrections.committed_runs()
    known = [event.values["batch"] for event in all_events() if event.lane == carriers.LANE and event.kind == "already"]
    others = len(carriers.merged_batches(all_events()) - set(known))
    run.faults[
        "stream"
    ].outcome = f"batch {', '.join(map(str, known))} had already committed; {others} others, each merged once"
    run.require(len(known) == 1, f"one batch of the stream was found by its id: {known}")
    run.place.finish()
    once = sum(len(starts) == 1 for starts in corrected.values())
    run.require(once == len(run.corrections), f"{once} of {len(run.corrections)} flights were corrected once")
    run.say(f"{once} corrections, each once")
    for fault in run.faults.values():
        run.require(fault.hit, f"fault {fault.name} happened{'; instead: ' if fault.missed else ''}{fault.missed}")
    conflicts = count("conflict")
    run.say(f"all months ingested; {conflicts} conflicts, each retried; {run.snapshots} snapshots agreed")
    run.require(conflicts > 0, "the pipelines conflicted, so that retries were tested")


def show_progress(run: Run, shown: int) -> int:
    events = all_events()
    for event in events[shown:]:
        if event.kind == "committed" and event.lane in PIPELINES:
            done = len(
                {e.values["month"] for e in events if e.lane in PIPELINES and e.kind in ("committed", "already")}
            )
            flights, daily, routes = event.values["rows"]
            run.say(
                f"pipeline {event.lane}: month {event.values['month']:2} committed, {flights} flights, "
                f"{daily} days, {routes} routes ({done} of {settings.MONTHS})"
            )
        elif event.kind == "committed" and event.lane == carriers.LANE:
            if event.values["batch"] in carriers.merged_batches(events):
                run.say(f"stream: batch {event.values['batch']:2} of changes merged into carriers")
        elif event.kind == "conflict":
            run.say(f"pipeline {event.lane}: month {event.values['month']:2} conflicted, runs again")
        elif event.kind == "already" and event.lane in PIPELINES:
            run.say(f"pipeline {event.lane}: month {event.values['month']:2} has already committed, not counted twice")
        elif event.kind == "already" and event.lane == carriers.LANE:
            run.say(f"stream: batch {event.values['batch']:2} has already committed, not counted twice")
        elif event.kind == "killed" and event.lane == "tso":
            starts = ", ".join(map(str, event.values["starts"]))
            run.say(f"TSO {event.values['pid']} killed while it had the commit requests of {starts}")
        elif event.lane == CLUSTER:
            run.say(f"cluster: {event.kind}, {', '.join(f'{k} {v}' for k, v in event.values.items())}")
        elif event.kind == "interrupted" and event.lane in PIPELINES:
            run.say(f"pipeline {event.lane}: month {event.values['month']:2} got no reply, runs again by its id")
        elif event.kind == "torn":
            run.say(f"snapshot {event.values['start_ts']} is TORN")
    return len(events)


# --- compaction and sanitizing ------------------------------------------------------------------------------


def clean(run: Run, spark: SparkSession) -> None:
    wait_for_watermark(run)
    db = pyomid.spark.connect(spark, url())
    run.before = timed("verify", db.verify)
    run.say(f"before compaction\n{run.before}")
    attribute_orphans(run, run.before)
    run.compaction = timed("compact", db.compact)
    run.say(f"compaction\n{run.compaction}")
    run.say(f"sanitizing waits for the longest commit retry, {settings.COMMIT_RETRY_SECONDS} s")
    time.sleep(settings.COMMIT_RETRY_SECONDS + 0.5)
    run.sanitising = timed("sanitize", db.sanitize)
    run.say(f"sanitizing\n{run.sanitising}")
    run.after = timed("verify", db.verify)
    run.say(f"after sanitizing\n{run.after}")
    run.require(run.before.ok and run.after.ok, "verification found no torn commit and no violation")
    run.require(run.after.orphans == 0, f"no orphans are left: {run.after.orphans}")
    run.require(run.after.missing_shadow_cells == 0, f"every cell has its shadow cell: {run.after}")
    left, before = run.after.commit_table_entries, run.before.commit_table_entries
    run.require(left < before, f"the commit table shrank: {before} entries, then {left}")


def wait_for_watermark(run: Run) -> None:
    """Wait until the published low watermark has passed everything that the pipelines did."""
    with pyomid.connect(url()) as db:
        with db.begin() as tx:
            target = min(tx.start_ts, db.status().tso.last_ts)  # an idle folder's clock stands below every start
        run.say(f"waiting for the low watermark to pass {target}: until leases of dead drivers expire")
        deadline_s = time.monotonic() + 90
        while db.status().tso.watermark < target and time.monotonic() < deadline_s:
            time.sleep(0.25)
        run.require(db.status().tso.watermark >= target, f"the watermark passed {target}")


def attribute_orphans(run: Run, found: Verification) -> None:
    """Assign orphans to the fault that left them; those of conflicts belong to none. A branch that no pipeline reported
    belongs to the killed worker, unless other tasks of a pipeline failed too, because they got no reply."""
    losers = {branch for event in all_events() if event.kind == "written" for branch in event.values["branches"]}
    only_worker = not any(count("interrupted", lane) for lane in (*PIPELINES, carriers.LANE))
    for start, cells in found.orphan_starts.items():
        for fault in run.faults.values():
            if start in fault.branches:
                fault.orphans += cells
        if start not in losers and only_worker:
            run.faults["worker"].orphans += cells


def timed(what: str, job: Callable[[], T]) -> T:
    began = time.time()
    result = job()
    note("demo", what, seconds=time.time() - began)
    return result


# --- the end ----------------------------------------------------------------------------------------------


def compare_all(run: Run, spark: SparkSession) -> None:
    with pyomid.spark.connect(spark, url()).begin() as tx:
        run.comparisons += compare(spark, tx, run.corrections)
    for comparison in run.comparisons:
        run.require(comparison.equal, f"{comparison.what}: {comparison.source}, not {comparison.database}")


def summary(run: Run) -> None:
    assert run.before is not None
    assert run.after is not None
    assert run.compaction is not None
    faults_text = table_text(
        ("fault", "happened", "outcome found", "orphan cells removed"),
        [(f.what, "yes" if f.hit else "NO", f.outcome, f.orphans) for f in run.faults.values()],
    )
    sizes = table_text(
        ("", "cells", "orphans", "missing shadow cells", "commit-table entries"),
        [
            (name, v.cells, v.orphans, v.missing_shadow_cells, v.commit_table_entries)
            for name, v in (("before compaction", run.before), ("after", run.after))
        ],
    )
    figures = table_text(
        ("figure", "source", "database", ""),
        [(c.what, c.source, c.database, "equal" if c.equal else "DIFFERENT") for c in run.comparisons],
    )
    healed = f"compaction healed {run.compaction.cells_healed} cells"
    print(f"\n{faults_text}\n\n{healed}\n{sizes}\n\n{report.growth_text(run.place)}\n\n{figures}\n", flush=True)
    seconds = time.time() - run.began
    verdict = "GREEN" if not run.failures else f"{len(run.failures)} FAILURES"
    print(f"{verdict} in {seconds:.0f} s", flush=True)
    for failure in run.failures:
        print(f"  {failure}", file=sys.stderr)
