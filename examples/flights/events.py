"""Events of all processes, in one file: one JSON object per line, appended in one write."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any

from examples.flights.settings import EVENTS


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `lane`: the process; `kind`: what happened; `at`: seconds since 1970."""

    at: float
    lane: str
    kind: str
    values: dict[str, Any]


def note(lane: str, kind: str, **values: Any) -> None:
    line = json.dumps({"at": time.time(), "lane": lane, "kind": kind, **values}) + "\n"
    descriptor = os.open(EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def all_events() -> list[Event]:
    if not EVENTS.exists():
        return []
    events = []
    for line in EVENTS.read_text().splitlines():
        values = json.loads(line)
        events.append(Event(values.pop("at"), values.pop("lane"), values.pop("kind"), values))
    return sorted(events, key=lambda event: event.at)


def count(kind: str, lane: str | None = None) -> int:
    return sum(event.kind == kind and lane in (None, event.lane) for event in all_events())
