"""Where the demo keeps its things, and the terms that it shortens so that minutes are enough."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path("build/demo").absolute()
DATABASE: Final = FOLDER / "database"
SOURCE: Final = FOLDER / "source"
EVENTS: Final = FOLDER / "events.jsonl"
LOGS: Final = FOLDER / "logs"
REPORT: Final = FOLDER / "report.html"

LEASE_SECONDS: Final = 15
"""A killed driver holds the watermark back this long (default: 5 minutes)."""

COMMIT_RETRY_SECONDS: Final = 10
"""Sanitising waits this long behind compaction (default: 60)."""

URL: Final = (
    f"omid://{DATABASE}?leaseSeconds={LEASE_SECONDS}&commitRetrySeconds={COMMIT_RETRY_SECONDS}"
    "&maxTransactionAgeSeconds=8&tsoIdleExitSeconds=30"
)

PIPELINES: Final = {"A": (1, 3, 5, 7, 9, 11), "B": (2, 4, 6, 8, 10, 12)}
"""Months divided between two pipelines that run at once."""

CONFLICT_LEVEL: Final = "row"

FLIGHTS, DAILY, ROUTES = "flights", "daily", "routes"
FLIGHTS_KEY: Final = ("origin", "time_hour", "carrier", "flight")
DAILY_KEY: Final = ("day", "origin")
ROUTES_KEY: Final = ("origin", "dest")

CORRECTIONS: Final = 60
"""Flights that the service cancels; each is asked for by two threads."""

CLEARED: Final = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
"""What a cancelled flight has not."""


def transaction_id(month: int) -> str:
    return f"flights-2013-{month:02}"
