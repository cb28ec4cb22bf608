"""The service's log: one JSON object per line, for log collectors."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 60.0
LINES_MAX: Final = 100

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formats a log record as JSON: time, level, logger, pid, message, and the fields of `extra`."""

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


class BoundedLog:
    """Logs what peers cause: at most `LINES_MAX` lines of each kind per interval, and then the number of further ones.

    So a peer that is refused a million times neither fills the disk nor hides lines of other kinds.
    """

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._logged: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()
        self._texts: dict[str, str] = {}
        self._until_s = clock() + INTERVAL_S

    def warning(self, kind: str, message: str, **extra: object) -> None:
        if self._logged[kind] < LINES_MAX:
            self._logged[kind] += 1
            self._log.warning("%s", message, extra={"kind": kind, **extra})
        else:
            self._counted[kind] += 1
            self._texts[kind] = f"more messages of this kind; the last was: {message}"

    def count(self, kind: str, count: int, text: str) -> None:
        """Log events that are too frequent for a line each: the first one at once, then one sum per interval."""
        if not self._logged[kind]:
            self._logged[kind] = 1
            self._log.warning("%d %s", count, text, extra={"kind": kind, "count": count})
        else:
            self._counted[kind] += count
            self._texts[kind] = text

    def log_counts(self, now_s: float) -> None:
        """If the interval is over, log the counts and begin the next interval."""
        if now_s < self._until_s:
            return
        self._until_s = now_s + INTERVAL_S
        for kind, count in self._counted.items():
            self._log.warning("%d %s", count, self._texts[kind], extra={"kind": kind, "count": count})
        self._logged.clear()
        self._counted.clear()
        self._texts.clear()


def log_to_standard_error(level: str = "info") -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
