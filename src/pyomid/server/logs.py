"""The service's log: one JSON object a line, for files and log collectors."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyomid.errors import OmidError
from pyomid.system import is_shared, open_own

LOG_FILE: Final = "tso.log"
LOG_BYTES_MAX: Final = 16 << 20
"""A larger log is rotated, also while the service runs; one old file is kept."""

INTERVAL_S: Final = 60.0
LINES_MAX: Final = 100

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formats a record as JSON: time, level, logger, pid, message, and the fields of `extra`."""

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
    """Logs what peers cause: at most `LINES_MAX` lines of a kind per interval, and the number of further ones.

    So a peer that is refused a million times neither fills the disk nor hides other kinds of lines.
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
            self._texts[kind] = f"more of these, the last: {message}"

    def count(self, kind: str, count: int, text: str) -> None:
        """Log events that are too frequent for a line each: the first at once, then one sum per interval."""
        if not self._logged[kind]:
            self._logged[kind] = 1
            self._log.warning("%d %s", count, text, extra={"kind": kind, "count": count})
        else:
            self._counted[kind] += count
            self._texts[kind] = text

    def log_counts(self, now_s: float) -> None:
        """Log the counts and begin the next interval, if this one is over."""
        if now_s < self._until_s:
            return
        self._until_s = now_s + INTERVAL_S
        for kind, count in self._counted.items():
            self._log.warning("%d %s", count, self._texts[kind], extra={"kind": kind, "count": count})
        self._logged.clear()
        self._counted.clear()
        self._texts.clear()


def log_to(path: Path | None, *, level: str = "info") -> None:
    """Send all log lines to standard error, or to the file at `path`; the file then also gets standard output and
    standard error."""
    handler = logging.StreamHandler() if path is None else LogFile(path, standard_too=True)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class LogFile(logging.Handler):
    """Appends to a file, and rotates it when it exceeds `LOG_BYTES_MAX`; one old file is kept."""

    def __init__(self, path: Path, *, standard_too: bool = False) -> None:
        super().__init__()
        self._path = path
        self._standard_too = standard_too
        self._fd = -1
        self._open()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if os.fstat(self._fd).st_size > LOG_BYTES_MAX:
                self._open()
            os.write(self._fd, f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))
        except Exception:
            self.handleError(record)

    def _open(self) -> None:
        """Open the file; rotate it before if it is too large. The descriptor keeps its number, so that a thread that is
        just writing writes to the old or the new file."""
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path, follow_symlinks=False).st_size > LOG_BYTES_MAX:
                os.replace(self._path, self._path.with_suffix(self._path.suffix + ".1"))
        fd = open_own(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, shared=is_shared(self._path.parent))
        if self._fd < 0:
            self._fd = fd
        else:
            os.dup2(fd, self._fd, inheritable=False)
            os.close(fd)
        if self._standard_too:
            _replace_standard_streams(self._fd)

    def close(self) -> None:
        super().close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _replace_standard_streams(fd: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(fd, 1)
    os.dup2(fd, 2)


def append_text(path: Path, text: str) -> None:
    """Append to a log the output of a process that died before it could log anything."""
    with contextlib.suppress(OSError, OmidError):
        fd = open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, shared=is_shared(path.parent))
        try:
            os.write(fd, text.encode("utf-8", "backslashreplace"))
        finally:
            os.close(fd)
