"""Counts the files of pyomid that one walk passes, in the order in which a reader meets them. Run by hand:

    .venv/bin/python tests/support/walk.py client    # connect, begin, put, commit, read, close: an LMDB folder
    .venv/bin/python tests/support/walk.py spark     # a transaction over DataFrames, seen from the driver (needs a JDK)

A file counts if a function of it runs in the traced process, in any thread. An untraced round comes first, so module
bodies and compilation do not count. Neither do dataclass methods that Python generates, nor the inside of a compiled
kernel: the function that calls it counts.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyomid

PACKAGE = Path(pyomid.__file__).parent


class Walk:
    """The lines of each file that ran, by phase."""

    def __init__(self) -> None:
        self.phase = ""
        self.files: dict[str, dict[str, set[int]]] = {}

    def start(self) -> None:
        threading.settrace(self._call)
        sys.settrace(self._call)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_flags & inspect.CO_OPTIMIZED or not code.co_filename.startswith(f"{PACKAGE}/"):
            return None
        self._note(frame)
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self._note(frame)
        return self._line

    def _note(self, frame: FrameType) -> None:
        if self.phase:
            phases = self.files.setdefault(frame.f_code.co_filename, {})
            phases.setdefault(self.phase, set()).add(frame.f_lineno)

    def report(self, inner: str) -> str:
        lines = [f"{'file':<52}{'lines':>7}{'ran':>6}{'of these, ' + inner:>32}"]
        inner_files = 0
        for name, phases in self.files.items():
            ran = len(set().union(*phases.values()))
            of_inner = len(phases.get(inner, ()))
            inner_files += bool(of_inner)
            total = len(Path(name).read_text().splitlines())
            lines.append(f"{os.path.relpath(name, PACKAGE):<52}{total:>7}{ran:>6}{of_inner or '':>32}")
        return "\n".join([*lines, f"{len(self.files)} files, {inner_files} of them {inner}"])


OUTER, TRANSACTION = "connect and close", "begin to read"


def transact(folder: str, phase: Callable[[str], None]) -> None:
    phase(OUTER)
    with pyomid.connect(f"omid:///{folder.lstrip('/')}") as db:
        phase("")
        db.create_table("accounts", ["f"], if_not_exists=True)
        phase(TRANSACTION)
        with db.begin() as tx:
            tx.table("accounts").put(b"alice", {b"f:balance": b"100"})
        with db.begin() as tx:
            assert tx.table("accounts").get(b"alice") == {b"f:balance": b"100"}
        phase(OUTER)
    phase("")


def client(folder: str) -> None:
    walk = Walk()
    transact(folder, lambda phase: None)
    walk.start()
    transact(folder, lambda phase: setattr(walk, "phase", phase))
    walk.stop()
    print(walk.report(TRANSACTION))


def spark(folder: str) -> None:
    from pyspark.sql import SparkSession

    from pyomid.spark import connect

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    frame = session.createDataFrame([("alice", 100), ("bob", 50)], "name string, balance long")
    db = connect(session, f"omid:///{folder.lstrip('/')}")
    walk = Walk()
    for phase in ("", WRITE):
        walk.phase = phase
        if phase:
            walk.start()
        with db.begin() as tx:
            tx.write(frame, "accounts", row_key=["name"])
        walk.stop()
    print(walk.report(WRITE))
    session.stop()


WRITE = "one write and its commit"
WALKS = {"client": client, "spark": spark}

if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in WALKS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            WALKS[sys.argv[1]](folder)
    else:
        raise SystemExit(__doc__)
