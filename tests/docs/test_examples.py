"""What README and docs show is run, as it stands, over a fresh folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def blocks(document: str) -> list[str]:
    """The Python blocks of a document."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run_script(code: str, folder: Path) -> str:
    script = folder / "example.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.process
def test_readme_example_of_the_client_runs_as_it_stands(tmp_path: Path) -> None:
    shown = run_script(blocks("README.md")[1], tmp_path)
    assert shown.strip() == "[(b'alice', {b'f:balance': b'70'}), (b'bob', {b'f:balance': b'50'})]"


@pytest.mark.process
def test_examples_of_backups_run_as_they_stand(tmp_path: Path) -> None:
    run_script("\n".join(blocks("docs/backup.md")), tmp_path)


@pytest.mark.spark
def test_readme_example_of_spark_runs_as_it_stands_and_counts_once(tmp_path: Path) -> None:
    code = blocks("README.md")[0]
    for _ in range(2):
        assert "|   EWR|   -2|" in run_script(code, tmp_path)
