"""What README and docs show is run, as it stands, over a fresh folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def blocks(document: str, language: str = "python") -> list[str]:
    """The blocks of a document that are written in `language`; its output stands in blocks of `text`."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_script(code: str, folder: Path) -> str:
    script = folder / "example.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_page(document: str, folder: Path) -> None:
    """Its Python blocks are one program; what it prints holds the blocks of `text`, in their order."""
    out, found = run_script("\n".join(blocks(document)), folder), 0
    for shown in blocks(document, "text"):
        assert shown in out[found:], f"{shown}\nis not in\n{out[found:]}"
        found = out.index(shown, found) + len(shown)


@pytest.mark.process
def test_readme_example_of_the_client_runs_as_it_stands(tmp_path: Path) -> None:
    for _ in range(2):
        assert run_script(blocks("README.md")[0], tmp_path) == blocks("README.md", "text")[0]


@pytest.mark.process
def test_examples_of_backups_run_as_they_stand(tmp_path: Path) -> None:
    run_page("docs/backup.md", tmp_path)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_readme_example_of_spark_runs_as_it_stands_and_counts_once(tmp_path: Path) -> None:
    for _ in range(2):
        assert run_script(blocks("README.md")[1], tmp_path).strip() == blocks("README.md", "text")[1].strip()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_examples_of_spark_run_as_they_stand(tmp_path: Path) -> None:
    run_page("docs/spark.md", tmp_path)
