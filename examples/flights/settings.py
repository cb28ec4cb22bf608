"""Where the demo keeps its things, and the terms that it shortens so that minutes are enough.

The store is chosen by the command line and handed to every process of the demo by its environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

STORE: Final = os.environ.get("DEMO_STORE", "embedded")
SECURED: Final = os.environ.get("DEMO_SECURED") == "1"
"""Kerberos and TLS between all of them."""
FOLDER: Final = Path("build/demo" if STORE == "embedded" else f"build/demo-{STORE}{'-secured' * SECURED}").absolute()
DATABASE: Final = FOLDER / "database"
SOURCE: Final = FOLDER / "source"
EVENTS: Final = FOLDER / "events.jsonl"
LOGS: Final = FOLDER / "logs"
CHECKPOINT: Final = FOLDER / "checkpoint"
ALL_IN: Final = FOLDER / "all-in"
"""A file that tells the stream that nothing comes any more."""
REPORT: Final = FOLDER / "report.html"

LEASE_SECONDS: Final = {"embedded": 15, "hbase": 45}[STORE]
"""A killed driver holds the watermark back this long (default: 5 minutes). On a cluster longer than a fail-over and the
recovery of a region server together: a driver that lives through both keeps its snapshot."""

COMMIT_RETRY_SECONDS: Final = {"embedded": 10, "hbase": 20}[STORE]
"""Sanitising waits this long behind compaction (default: 60)."""

MAX_AGE_SECONDS: Final = 8
"""The watermark follows this closely behind transactions without a lease (default: 10 minutes)."""

TERMS: Final = (
    f"leaseSeconds={LEASE_SECONDS}&commitRetrySeconds={COMMIT_RETRY_SECONDS}&maxTransactionAgeSeconds={MAX_AGE_SECONDS}"
)

MONTHS_EACH: Final = int(os.environ.get("DEMO_MONTHS_EACH", {"embedded": "6", "hbase": "4"}[STORE]))
"""Of each pipeline; 2 (over HBase 3) are the fewest with which every fault finds its moment. Six JVMs of a cluster on
one machine share its cores with the pipelines: eight months are enough for all its faults, and 6 does the year."""

PIPELINES: Final = {"A": (1, 3, 5, 7, 9, 11)[:MONTHS_EACH], "B": (2, 4, 6, 8, 10, 12)[:MONTHS_EACH]}
"""Months divided between two pipelines that run at once."""

MONTHS: Final = sum(len(months) for months in PIPELINES.values())

CONFLICT_LEVEL: Final = "row"

FLIGHTS, DAILY, ROUTES, CARRIERS = "flights", "daily", "routes", "carriers"
FLIGHTS_KEY: Final = ("origin", "time_hour", "carrier", "flight")
DAILY_KEY: Final = ("day", "origin")
ROUTES_KEY: Final = ("origin", "dest")
CARRIERS_KEY: Final = ("carrier",)

CORRECTIONS: Final = 60
"""Flights that the service cancels; each is asked for by two threads."""

CLEARED: Final = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
"""What a cancelled flight has not."""


def url() -> str:
    """The database's. Of servers that the demo starts: known, and in the environment, once they run."""
    return os.environ.get("DEMO_URL", f"omid://{DATABASE}?{TERMS}&tsoIdleExitSeconds=30")


def transaction_id(month: int) -> str:
    return f"flights-2013-{month:02}"
