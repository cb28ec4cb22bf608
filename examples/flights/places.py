"""The demo's database: a folder on this machine, or an HBase that the demo starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from examples.flights import faults

EXAMPLE_RATE = 100_000
EXAMPLE_FAILING = 0.01
EXAMPLE_ENTRY_BYTES = 16
"""Transactions per second, the fraction that fails between commit and completion, and the bytes that each failed one
leaves: the example in Apache Omid's documentation, "Management of Client Failures"."""

SECONDS_A_YEAR = 365 * 24 * 3600

HELD_AT = 5
"""The write transaction after which a process of the service dies."""

CLUSTER = "cluster"
"""The lane of events of the store's servers."""


@dataclass(slots=True)
class Fault:
    """One fault: whether it happened, the outcome found afterwards, and the orphan cells that it left."""

    name: str
    what: str
    hit: bool = False
    outcome: str = ""
    orphans: int = 0
    branches: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Service:
    """A program of the service: its name, its threads, and the variables that arm its death."""

    name: str
    threads: tuple[int, ...]
    environment: dict[str, str] = field(default_factory=dict)


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

    def watch(self) -> None:
        """Inject the store's own faults, each at its moment; called repeatedly while jobs run."""

    def finish(self) -> None:
        """Record the outcomes of the faults; called after the jobs."""

    def growth(self) -> tuple[str, float]:
        """Return, as text, how this store keeps commits, and by how many bytes per year its commit table would grow
        without sanitizing at the rate of Apache Omid's example."""


class Folder:
    """The embedded store: two processes of the service commit to it, and perform each other's commits."""

    title = "one embedded database"
    deaths = "two processes of the service amid commits"

    def __init__(self) -> None:
        self._faults = [
            Fault("posted", "kill -9 of a process whose commit waits for another one's turn"),
            Fault("holder", "kill -9 of a process with the turn, behind the commit of LMDB"),
        ]

    def faults(self) -> list[Fault]:
        return self._faults

    def services(self) -> list[Service]:
        return [
            Service("posted", (1, 2, 3), faults.environment("storage.commit.posted", "posted")),
            Service("holder", (4, 5, 6), faults.environment(f"storage.commit.durable:{HELD_AT}", "holder")),
        ]

    def watch(self) -> None:
        """A folder's faults are armed before its programs start."""

    def finish(self) -> None:
        for fault, service in zip(self._faults, self.services(), strict=True):
            fault.hit = faults.was_hit(fault.name)
            requests = faults.requests_at_death(service.threads)
            fault.outcome = "; ".join(map(faults.after, requests))

    def growth(self) -> tuple[str, float]:
        """A small commit's timestamp is in its record; branches are forgotten when compaction has marked their
        records."""
        return "keeps the timestamp of a small commit in its record", 0.0
