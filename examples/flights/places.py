"""The demo's database: a folder on this machine, or an HBase that the demo starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from examples.flights import corrections, faults
from examples.flights.events import count
from examples.flights.settings import FOLDER, url

EXAMPLE_RATE = 100_000
EXAMPLE_FAILING = 0.01
EXAMPLE_ENTRY_BYTES = 16
"""Transactions per second, the fraction that fails between commit and completion, and the bytes that each failed one
leaves: the example in Apache Omid's documentation, "Management of Client Failures"."""

SECONDS_A_YEAR = 365 * 24 * 3600

HELD_AT = 2
"""The write transaction behind which a process of the service is stopped with the turn. The first one may be that of
its connection; then it makes twenty or more of its own."""

START_S_MAX = 60
"""Longest time from the start of a process of the service to its connection, or its first commit."""

HELD_S_MAX = 20
"""Longest time for which the stopped process keeps the turn: other writers give up after 30 s."""

CLUSTER = "cluster"
"""The lane of events of the store's servers."""


@dataclass(slots=True)
class Fault:
    """One fault: whether it happened, the outcome found afterwards, and the orphan cells that it left."""

    name: str
    what: str
    hit: bool = False
    outcome: str = ""
    missed: str = ""
    """Why it did not happen, if that is known."""
    orphans: int = 0
    branches: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Service:
    """A program of the service: its name, its threads, and the variables that arm its death."""

    name: str
    threads: tuple[int, ...]
    environment: dict[str, str] = field(default_factory=dict)


Start = Callable[[Service], faults.Process]
Started = dict[str, faults.Process]


class Place(Protocol):
    """The differences between the stores. Pipelines, service and reader are the same on both."""

    @property
    def title(self) -> str:
        """Name of the database in the report."""

    @property
    def deaths(self) -> str:
        """The processes that are killed besides a worker and three drivers."""

    def faults(self) -> list[Fault]:
        """Return the faults that only this store has."""

    def services(self) -> list[Service]:
        """Return the programs of the service. If a fault has a program's name, it dies by it."""

    def start_services(self, start: Start) -> Started:
        """Start the programs of the service, and bring about the faults in which they meet; return them by name."""

    def watch(self) -> None:
        """Inject the store's own faults, each at its moment; called repeatedly while jobs run."""

    def finish(self) -> None:
        """Record the outcomes of the faults; called after the jobs."""

    def growth(self) -> tuple[str, float]:
        """Return, as text, how this store keeps commits, and by how many bytes per year its commit table would grow
        without sanitizing at the rate of Apache Omid's example."""


class Folder:
    """The embedded store: two processes of the service commit to it, and perform each other's commits.

    Both die of one situation, which does not depend on how often their commits happen to meet:

        posted                                 holder
        connects, and waits                    is not started yet
                                               commits; is stopped behind LMDB's commit, with the turn
        is let go; posts its commit, since
        the turn is taken; dies at that
                                               is killed
    """

    title = "one embedded database"
    deaths = "two processes of the service amid commits"

    def __init__(self) -> None:
        self._faults = [
            Fault("posted", "kill -9 of a process whose commit waits for another one's turn"),
            Fault("holder", "kill -9 of a process with the turn, behind the commit of LMDB"),
        ]
        self._turn_is_held = FOLDER / "turn-is-held"
        """The file for which the process waits that will post."""

    def faults(self) -> list[Fault]:
        return self._faults

    def services(self) -> list[Service]:
        # Only commits are posted. Behind upkeep, or timestamps that a reader completes, they would wait for the turn.
        own = {"DEMO_URL": f"{url()}&upkeepShare=0&completionLingerMs=120000"}
        posted = {**own, **faults.environment("storage.commit.posted", "posted")}
        holder = {**own, **faults.environment(f"storage.commit.durable:{HELD_AT}", "holder", how="stop")}
        return [
            Service("posted", (1, 2, 3), {**posted, "DEMO_AWAITS": str(self._turn_is_held)}),
            Service("holder", (4, 5, 6), holder),
        ]

    def start_services(self, start: Start) -> Started:
        of_posted, of_holder = self._faults
        first, second = self.services()
        posted = start(first)
        faults.happens(lambda: posted.ended or count("started", corrections.LANE) > 0, START_S_MAX)
        holder = start(second)
        faults.happens(lambda: holder.ended or faults.was_hit("holder"), START_S_MAX)
        is_held = not faults.is_prevented("holder")  # if it stopped later, nothing would end it
        self._turn_is_held.touch()
        if is_held:
            try:
                faults.happens(lambda: posted.ended, HELD_S_MAX)
            finally:
                holder.popen.kill()
                holder.popen.wait()
        else:
            of_holder.missed = f"it did not commit with the turn within {START_S_MAX} s, see {holder.log}"
        if not faults.was_hit("posted"):
            held = f"while the turn was held for {HELD_S_MAX} s" if is_held else "since the turn was not held"
            of_posted.missed = f"it posted no commit {held}, see {posted.log}"
        return {first.name: posted, second.name: holder}

    def watch(self) -> None:
        """A folder's faults happen as its programs start."""

    def finish(self) -> None:
        for fault, service in zip(self._faults, self.services(), strict=True):
            fault.hit = faults.was_hit(fault.name)
            requests = faults.requests_at_death(service.threads)
            fault.outcome = "; ".join(map(faults.after, requests))

    def growth(self) -> tuple[str, float]:
        """A small commit's timestamp is in its record; branches are forgotten when compaction has marked their
        records."""
        return "keeps the timestamp of a small commit in its record", 0.0
