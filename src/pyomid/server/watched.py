"""The state of a TSO process that its port for metrics and health checks reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyomid.server.service import TsoService


class UpkeepReport(Protocol):
    """Counts of the upkeep of a folder's TSO since the process started."""

    passes: int
    versions_dropped: int
    entries_deleted: int
    failures: int
    busy_seconds: float


class Watched:
    """The reported process: it stands by, and has a service from the moment it leads."""

    def __init__(self) -> None:
        self.service: TsoService | None = None
        self.upkeep: UpkeepReport | None = None
        self.is_prepared: Callable[[], bool] = lambda: False
        """Returns whether a standby could lead at once: its code and memory are loaded."""

    @property
    def state(self) -> str:
        """Return "serving", "standing by" (alive, may lead later), or "not serving" (ending or dead)."""
        if self.service is None:
            return "standing by"
        return "serving" if self.service.is_serving else "not serving"
