"""What a program's own type checker says of pyomid: it reads the installed package, without our settings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

PROGRAM = Path(__file__).parents[1] / "support" / "typed_program.py"
SCRIPTS = Path(sys.executable).parent
STRICT = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}


def test_mypy_accepts_a_program_and_finds_its_faults(tmp_path: Path) -> None:
    check(tmp_path, sys.executable, "-m", "mypy", "--strict", "--config-file=", "program.py")


def test_pyright_accepts_a_program_and_finds_its_faults(tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(STRICT))
    check(tmp_path, str(SCRIPTS / "pyright"), "--pythonpath", sys.executable)


def check(folder: Path, *command: str) -> None:
    (folder / "program.py").write_text(PROGRAM.read_text())
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
