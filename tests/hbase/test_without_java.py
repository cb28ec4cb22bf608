"""A machine without Java: skipped tests are reported with the reason; in CI that is a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOM = Path(__file__).parent


def run_without_java(tmp_path: Path, ci: str) -> str:
    """One test that needs the server, by a pytest that finds neither JDK nor Maven."""
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "CI")}
    environment |= {"PATH": str(tmp_path), **({"CI": ci} if ci else {})}
    environment.pop("PYOMID_TEST_HBASE", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "hbase", str(ROOM / "test_adopt.py")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, cwd=ROOM.parents[1])
    return ran.stdout + ran.stderr


def test_skipped_tests_are_reported_with_the_reason(tmp_path: Path) -> None:
    said = run_without_java(tmp_path, ci="")
    assert "skipped" in said
    assert "failed" not in said
    assert "not run: the tests of a real HBase need Java: java is not installed" in said
    assert "JDK 17 and Maven" in said


def test_ci_fails_without_java(tmp_path: Path) -> None:
    said = run_without_java(tmp_path, ci="true")
    assert "CI must run the tests of a real HBase: java is not installed" in said
    assert " error" in said or " failed" in said
    assert " passed" not in said
