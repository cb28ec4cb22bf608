"""The demo's paths, and the terms that it shortens so that it takes only minutes.

The command line chooses the store; every process of the demo gets the choice from its environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

STORE: Final = os.environ.get("DEMO_STORE", "embedded")
SECURED: Final = os.environ.get("DEMO_SECURED") == "1"
"""Whether all servers and clients use Kerberos and TLS."""
FOLDER: Final = Path("build/demo" if STORE == "embedded" else f"build/demo-{STORE}{'-secured' * SECURED}").absolute()
DATABASE: Final = FOLDER / "database"
SOURCE: Final = FOLDER / "source"
EVENTS: Final = FOLDER / "events.jsonl"
LOGS: Final = FOLDER / "logs"
CHECKPOINT: Final = FOLDER / "checkpoint"
ALL_IN: Final = FOLDER / "all-in"
"""A file that signals to the stream that all data have been ingested."""
REPORT: Final = FOLDER / "report.html"

LEASE_SECONDS: Final = {"embedded": 15, "hbase": 45}[STORE]
"""How long a killed driver holds the watermark back (default: 5 minutes). On a cluster it is longer than a failover and
the recovery of a region server together, so that a driver that survives both keeps its snapshot."""

COMMIT_RETRY_SECONDS: Final = {"embedded": 10, "hbase": 20}[STORE]
"""How long sanitizing waits after compaction (default: 60)."""

MAX_AGE_SECONDS: Final = 8
"""How long a transaction without a lease can hold the watermark back (default: 10 minutes)."""

TERMS: Final = (
    f"leaseSeconds={LEASE_SECONDS}&commitRetrySeconds={COMMIT_RETRY_SECONDS}&maxTransactionAgeSeconds={MAX_AGE_SECONDS}"
)

MONTHS_EACH: Final = int(os.environ.get("DEMO_MONTHS_EACH", {"embedded": "6", "hbase": "4"}[STORE]))
"""Months of each pipeline; with fewer than 2 (over HBase 3) some faults find no moment. On a cluster six JVMs share the
machine's cores with the pipelines, so the default there is eight months in all, enough for all faults; 6 ingests the
whole year."""

PIPELINES: Final = {"A": (1, 3, 5, 7, 9, 11)[:MONTHS_EACH], "B": (2, 4, 6, 8, 10, 12)[:MONTHS_EACH]}
"""The months of the two pipelines, which run at once."""

MONTHS: Final = sum(len(months) for months in PIPELINES.values())

CONFLICT_LEVEL: Final = "row"

FLIGHTS, DAILY, ROUTES, CARRIERS = "flights", "daily", "routes", "carriers"
FLIGHTS_KEY: Final = ("origin", "time_hour", "carrier", "flight")
DAILY_KEY: Final = ("day", "origin")
ROUTES_KEY: Final = ("origin", "dest")
CARRIERS_KEY: Final = ("carrier",)

CORRECTIONS: Final = 60
"""Number of flights that the service cancels; two threads try to cancel each."""

CLEARED: Final = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
"""Columns that are null for a cancelled flight."""


def url() -> str:
    """Return the database's URL. With servers it is in the environment once they run."""
    return os.environ.get("DEMO_URL", f"omid://{DATABASE}?{TERMS}")


def run_id(month: int) -> str:
    return f"flights-2013-{month:02}"
