"""What a newcomer does with an installed pyomid, in an environment that has nothing else: `make test-install` runs it.

usage: installed.py light|extras
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pyomid

ROWS = 300


def main(kind: str) -> None:
    is_there = {name: find_spec(name) is not None for name in ("uvloop", "prometheus_client")}
    assert set(is_there.values()) == {kind == "extras"}, is_there
    assert (files(pyomid) / "py.typed").is_file()
    with tempfile.TemporaryDirectory(prefix="pyomid-installed-") as folder:
        url = f"omid://{folder}/db"
        run("init", url)
        transactions(url)
        status = run("status", url)
        assert "families f" in status, status


def transactions(url: str) -> None:
    with pyomid.connect(url) as db:
        db.create_table("t", families=["f"])
        with db.begin() as tx:
            for number in range(ROWS):
                tx.table("t").put(b"row %03d" % number, {b"f:a": b"%d" % number, b"f:b": b"x"})
        with db.begin() as tx:
            tx.table("t").put(b"row 007", {b"f:a": b"again"})
            tx.table("t").delete(b"row 008")
        with db.begin() as tx:
            assert tx.table("t").get(b"row 007") == {b"f:a": b"again", b"f:b": b"x"}
            rows = dict(tx.table("t").scan(columns=[b"f:a"]))
        assert len(rows) == ROWS - 1
        assert rows[b"row 299"] == {b"f:a": b"299"}
        db.compact()
        db.sanitize()
        assert not db.verify().violations
        one, other = db.begin(), db.begin()
        for tx in (one, other):
            tx.table("t").put(b"row 001", {b"f:a": b"-1"})
        one.commit()
        try:
            other.commit()
        except pyomid.ConflictError:
            return
        raise AssertionError("two transactions wrote one cell, and both committed")


def run(*arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "pyomid"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1])
