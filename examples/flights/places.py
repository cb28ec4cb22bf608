"""Where the demo's database lives: a folder on this machine, or an HBase that the demo starts. A parameter, no copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from examples.flights.settings import DATABASE

from pyomid.server.leadership import holder
from pyomid.storage.embedded.commit_table import RECORD_BYTES, RECORD_TIMESTAMPS

EXAMPLE_RATE = 100_000
EXAMPLE_FAILING = 0.01
EXAMPLE_ENTRY_BYTES = 16
"""Transactions a second, the part of them that fails between commit and completion, and what each then leaves behind:
the example of Apache Omid's documentation, "Management of Client Failures"."""

SECONDS_A_YEAR = 365 * 24 * 3600

CLUSTER = "cluster"
"""The lane of what happens to servers of the store."""


@dataclass(slots=True)
class Fault:
    """One kill: what was looked up afterwards, what was left behind, and what took it away."""

    name: str
    what: str
    hit: bool = False
    outcome: str = ""
    orphans: int = 0
    branches: set[int] = field(default_factory=set)


class Place(Protocol):
    """What differs between the stores; nothing of it is known to pipelines, service and reader."""

    @property
    def title(self) -> str:
        """Of the database, as the report names it."""

    @property
    def deaths(self) -> str:
        """What is killed besides a worker and three drivers."""

    def faults(self) -> list[Fault]:
        """The faults that only this place has."""

    def tso_pid(self) -> int:
        """The TSO that answers now; 0 while there is none."""

    def watch(self) -> None:
        """Called again and again while jobs run: injects the place's own faults, each at its moment."""

    def finish(self) -> None:
        """When the jobs are done: what became of the faults."""

    def growth(self) -> tuple[str, float]:
        """How this store keeps commits, in words, and the bytes by which its commit table grows in a year without
        sanitising at the rate of Apache Omid's example."""


class Folder:
    """The embedded store; its TSO is started by whoever needs one."""

    title = "one embedded database"
    deaths = "the TSO"

    def faults(self) -> list[Fault]:
        return []

    def tso_pid(self) -> int:
        return int(holder(DATABASE).get("pid", 0))

    def watch(self) -> None:
        """Nothing but the common faults."""

    def finish(self) -> None:
        """Nothing to look up."""

    def growth(self) -> tuple[str, float]:
        """A record stays as long as one of its starts does; each transaction takes two timestamps."""
        starts_a_record = RECORD_TIMESTAMPS / 2
        kept = 1 - (1 - EXAMPLE_FAILING) ** starts_a_record
        words = f"keeps {RECORD_TIMESTAMPS} timestamps to a record of {RECORD_BYTES} B"
        return words, EXAMPLE_RATE / starts_a_record * kept * SECONDS_A_YEAR * RECORD_BYTES
