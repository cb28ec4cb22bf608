"""Events of all processes of the demo, one JSON object per line of one file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def note(folder: Path, kind: str, **values: Any) -> None:
    line = json.dumps({"at": time.time(), "kind": kind, **values}) + "\n"
    descriptor = os.open(folder / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def noted(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    file = folder / "events.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [event for event in map(json.loads, lines) if kind in (None, event["kind"])]
