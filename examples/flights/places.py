"""The demo's database: a folder on this machine, or an HBase that the demo starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from examples.flights.settings import DATABASE
from pyomid.storage.embedded.commit_table import RECORD_BYTES, RECORD_TIMESTAMPS

from pyomid.server.leadership import holder

EXAMPLE_RATE = 100_000
EXAMPLE_FAILING = 0.01
EXAMPLE_ENTRY_BYTES = 16
"""Transactions per second, the fraction that fails between commit and completion, and the bytes that each failed one
leaves: the example in Apache Omid's documentation, "Management of Client Failures"."""

SECONDS_A_YEAR = 365 * 24 * 3600

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

    def tso_pid(self) -> int:
        """Return the pid of the TSO that serves now; 0 if none does."""

    def watch(self) -> None:
        """Inject the store's own faults, each at its moment; called repeatedly while jobs run."""

    def finish(self) -> None:
        """Record the outcomes of the faults; called after the jobs."""

    def growth(self) -> tuple[str, float]:
        """Return, as text, how this store keeps commits, and by how many bytes per year its commit table would grow
        without sanitizing at the rate of Apache Omid's example."""


class Folder:
    """The embedded store; any client that needs a TSO starts it."""

    title = "one embedded database"
    deaths = "the TSO"

    def faults(self) -> list[Fault]:
        return []

    def tso_pid(self) -> int:
        return int(holder(DATABASE).get("pid", 0))

    def watch(self) -> None:
        """A folder has only the common faults."""

    def finish(self) -> None:
        """A folder has no faults of its own to look up."""

    def growth(self) -> tuple[str, float]:
        """A record stays as long as one of its starts stays; each transaction takes two timestamps."""
        starts_a_record = RECORD_TIMESTAMPS / 2
        kept = 1 - (1 - EXAMPLE_FAILING) ** starts_a_record
        words = f"keeps {RECORD_TIMESTAMPS} timestamps to a record of {RECORD_BYTES} B"
        return words, EXAMPLE_RATE / starts_a_record * kept * SECONDS_A_YEAR * RECORD_BYTES
