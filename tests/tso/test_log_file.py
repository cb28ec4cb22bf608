"""Rotation of a service's log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

PROGRAM = """
import logging, os, sys
from pathlib import Path
from pyomid.server import logs
logs.LOG_BYTES_MAX = 10_000
logs.log_to(Path(sys.argv[1]))
for number in range(1000):
    logging.getLogger("x").info("line %d", number)
os.write(2, b"the end\\n")
"""


def test_a_log_is_rotated_while_its_service_runs(tmp_path: Path) -> None:
    """What the process says by itself goes with the log, not with what was set aside."""
    log = tmp_path / "tso.log"
    subprocess.run([sys.executable, "-c", PROGRAM, str(log)], check=True, timeout=60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tso.log", "tso.log.1"]
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 11_000
    *lines, end = log.read_text().splitlines()
    assert end == "the end"
    before = (tmp_path / "tso.log.1").read_text().splitlines()
    numbers = [int(json.loads(line)["message"].split()[1]) for line in before + lines]
    assert numbers == list(range(numbers[0], 1000))
