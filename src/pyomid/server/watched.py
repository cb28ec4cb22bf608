"""The state of a TSO's process that its port for metrics and health checks reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyomid.server.service import TsoService


class UpkeepReport(Protocol):
    """What the upkeep of a folder's TSO did since the process began."""

    passes: int
    versions_dropped: int
    entries_deleted: int
    failures: int
    busy_seconds: float


class Watched:
    """The process that the port reports: it stands by, and has a service from the moment it leads."""

    def __init__(self) -> None:
        self.service: TsoService | None = None
        self.upkeep: UpkeepReport | None = None
        self.is_prepared: Callable[[], bool] = lambda: False
        """Whether it could lead at once: it stands by, and its code and memory are loaded."""

    @property
    def state(self) -> str:
        """serving, standing by (alive, may lead later), or not serving (ends, or is dead)."""
        if self.service is None:
            return "standing by"
        return "serving" if self.service.is_serving else "not serving"
