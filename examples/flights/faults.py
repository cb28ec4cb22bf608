"""The faults that the demo injects, and their outcomes.

    worker   SIGKILL of a Spark Python worker after it wrote a batch           Spark retries the task
    driver   SIGKILL of a driver after its tasks, before its commit            its months run again, by id
    answer   SIGKILL of a driver after the reply "committed"                   its id says: done

    on a folder
    holder   SIGKILL of a process with the turn, behind LMDB's commit          its ids say what is done
    posted   SIGKILL of a process whose commit waits for the holder's turn     its ids say what is done

    on HBase
    tso      SIGKILL of the TSO while it has commit requests                   the standby leads

The demo repairs nothing: it only restarts processes and looks up the outcomes of their ids.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights.again import again
from examples.flights.events import Event, all_events, note
from examples.flights.settings import FOLDER, LOGS, run_id, url

import pyomid.spark
from pyomid.spark import RunOutcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET_SECONDS = 0.5
"""The clients of a frozen TSO are considered idle after this long without an event."""


@dataclass(slots=True)
class Process:
    """A child process of the demo, with its own log file."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def ended(self) -> bool:
        return self.popen.poll() is not None

    @property
    def killed(self) -> bool:
        return self.popen.returncode == -signal.SIGKILL


def start(name: str, module: str, *arguments: str, environment: dict[str, str] | None = None) -> Process:
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}-{len(list(LOGS.iterdir()))}.log"
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Process(name, popen, log)


def environment(point: str, fault: str, *, how: str = "kill", in_workers: bool = False) -> dict[str, str]:
    """Return environment variables that arm one crash point, for one signal, in the process or its Spark workers."""
    note_file = FOLDER / f"fault-{fault}"
    variables = {
        "PYOMID_CRASH_AT": point,
        "PYOMID_CRASH_HOW": how,
        "PYOMID_CRASH_NOTE": str(note_file),
        "PYOMID_CRASH_ONCE": f"{note_file}.once",
    }
    return {f"DEMO_WORKER_{name}": value for name, value in variables.items()} if in_workers else variables


def was_hit(fault: str) -> bool:
    return (FOLDER / f"fault-{fault}").exists()


def is_prevented(fault: str) -> bool:
    """Keep a fault from happening later; False if it has happened."""
    try:
        (FOLDER / f"fault-{fault}.once").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def happens(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait until the condition holds; False if it does not within this time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.005)
    return True


def kill_tso(pid: int) -> list[Event]:
    """Kill the TSO, process `pid`, while it has commit requests; return their "committing" events.

    The TSO is frozen first, so it answers no request: a correction that has noted its request, and nothing after it,
    waits for a reply that this TSO will never send. If none waits (all are reading), the TSO continues and the result
    is empty: try again later.
    """
    if not pid:
        return []
    try:
        os.kill(pid, signal.SIGSTOP)
        waiting = _settled_requests()
        if not waiting:
            os.kill(pid, signal.SIGCONT)
            return []
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return []
    note("tso", "killed", pid=pid, starts=[event.values["start_ts"] for event in waiting])
    return waiting


def requests_at_death(threads: Collection[int]) -> list[Event]:
    """Return what the threads of a killed program of the service were committing when it died."""
    events = [event for event in all_events() if event.values.get("thread") in threads]
    killed = [number for number, event in enumerate(events) if event.kind == "killed"]
    last = {event.values["thread"]: event for event in events[: min(killed, default=0)]}
    return [event for event in last.values() if event.kind == "committing"]


def after(request: Event) -> str:
    """Return the outcome of a commit request that was not answered because a process died."""
    thread, start_ts = request.values["thread"], request.values["start_ts"]
    for event in all_events():
        is_of_it = event.values.get("thread") == thread and event.values.get("key") == request.values["key"]
        if event.at <= request.at or not is_of_it:
            continue
        if event.kind == "committing":
            return f"start {start_ts}: not committed, rerun as {event.values['start_ts']}"
        if event.values["start_ts"] == start_ts:
            return f"start {start_ts}: committed"
        return f"start {start_ts}: not committed; another run of its id is, start {event.values['start_ts']}"
    return f"start {start_ts}: never answered"


def _settled_requests() -> list[Event]:
    """Return the corrections' requests without a reply, once nothing has changed for a while."""
    seen, since = _unanswered(), time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        time.sleep(QUIET_SECONDS / 10)
        now = _unanswered()
        if now != seen:
            seen, since = now, time.monotonic()
    return seen


def _unanswered() -> list[Event]:
    """Return the last event of each of the service's threads, if that is a commit request."""
    last = {event.values["thread"]: event for event in all_events() if "thread" in event.values}
    return [event for event in last.values() if event.kind == "committing"]


def unfinished(lane: str) -> Event | None:
    """Return the "begun" event of the month that a pipeline had not finished when it died, or None."""
    of_lane = [event for event in all_events() if event.lane == lane]
    begun = next((e for e in reversed(of_lane) if e.kind == "begun"), None)
    if begun is None:
        return None
    month = begun.values["month"]
    ended = any(e.kind in ("committed", "already") and e.values["month"] == month for e in of_lane)
    return None if ended else begun


def outcome(spark: SparkSession, month: int) -> RunOutcome:
    """Return the outcome of the dead driver's run, by the month's idempotency key; a run that is open is sealed."""
    look_up = partial(pyomid.spark.connect(spark, url()).look_up_run, run_id(month), settle=True)
    return again(look_up, lambda error: note("demo", "interrupted", error=type(error).__name__))
