"""Log lines of the service: one JSON object a line, for files and collectors."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Final

LOG_FILE: Final = "tso.log"
LOG_BYTES_MAX: Final = 16 << 20
"""A log larger than this is set aside (one generation) when a service starts."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Time, level, logger, message, and whatever was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in vars(record).items() if name not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to(path: Path | None, *, level: str = "info") -> None:
    """All of pyomid's log lines go to `path`, or to the standard error."""
    if path is not None:
        _set_aside(path)
    handler = logging.StreamHandler() if path is None else logging.FileHandler(path)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _set_aside(path: Path) -> None:
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        os.replace(path, path.with_suffix(path.suffix + ".1"))
