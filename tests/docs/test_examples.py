"""What README and docs show is run, as it stands, over a fresh folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

REPOSITORY = Path(__file__).parents[2]


def blocks(document: str, language: str = "python", *, until: str = "") -> list[str]:
    """The blocks of a document that are written in `language`; its output stands in blocks of `text`."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    if until:
        text, heading, _ = text.partition(f"\n{until}\n")
        assert heading, f"{document} has no heading {until!r}"
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def fenced(document: str) -> list[str]:
    """The blocks of a document that are shell commands: of `sh`, or without a language."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language in ("", "sh")]


def printed(notebook: Any) -> list[str]:
    """What each cell of a notebook printed, with the types of its pictures; without Spark's log."""
    found = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        text = "".join(each.text for each in outputs if each.get("name") == "stdout")
        found.append(text + " ".join(str(sorted(each.data)) for each in outputs if "data" in each))
    return found


def run_script(code: str, folder: Path, *arguments: str) -> str:
    script = folder / "example.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_page(document: str, folder: Path, *, until: str = "", then: str = "") -> None:
    """Run the Python blocks of a page, those before the heading `until`, as one program that the blocks of the page
    `then` continue. What it prints holds the blocks of `text`, in their order."""
    program, texts = blocks(document, until=until), blocks(document, "text", until=until)
    if then:
        program, texts = program + blocks(then), texts + blocks(then, "text")
    out, found = run_script("\n".join(program), folder), 0
    for shown in texts:
        assert shown in out[found:], f"{shown}\nis not in\n{out[found:]}"
        found = out.index(shown, found) + len(shown)


@pytest.mark.process
def test_readme_example_of_the_client_runs_as_it_stands(tmp_path: Path) -> None:
    code = blocks("README.md")[0].replace("/tmp/", f"{tmp_path}/")
    assert len([line for line in code.splitlines() if line]) <= 10
    for _ in range(2):
        assert run_script(code, tmp_path) == blocks("README.md", "text")[0]


@pytest.mark.process
def test_a_beginner_gets_what_the_page_shows(tmp_path: Path) -> None:
    run_page("docs/getting-started.md", tmp_path, until="## Spark")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_beginner_with_spark_gets_what_the_page_shows(tmp_path: Path) -> None:
    run_page("docs/getting-started.md", tmp_path)


@pytest.mark.process
@pytest.mark.parametrize("page", ["docs/backup.md", "docs/types.md", "docs/coming-from.md"])
def test_examples_over_a_folder_run_as_they_stand(tmp_path: Path, page: str) -> None:
    run_page(page, tmp_path)


@pytest.mark.process
@pytest.mark.parametrize("document", ["docs/architecture.md", "docs/upkeep.md"])
def test_examples_that_take_an_open_database_run_as_they_stand(tmp_path: Path, document: str) -> None:
    given = f"import pyomid\nurl = 'omid://{tmp_path}/db'\ndb = pyomid.connect(url)\n"
    given += "db.create_table('accounts', families=['f'])\n"
    run_script(given + "\n".join(blocks(document)), tmp_path)


SHELL_PAGES = ["docs/backup.md", "docs/shell.md"]


@pytest.mark.process
def test_commands_run_as_they_stand(tmp_path: Path) -> None:
    """Those of `SHELL_PAGES`, with folders of the test in place of /data and /backups."""
    given = f"""
import pyomid
with pyomid.connect("omid://{tmp_path}/data/shop") as db:
    db.create_table("orders", families=["f"])
    db.set_schema("orders", {{"id": "long", "customer": "string"}}, row_key="id")
    with db.begin() as tx:
        tx.table("orders", codec=dict).put({{"id": 17, "customer": "Ann"}})
"""
    run_script(given, tmp_path)
    (tmp_path / "backups").mkdir()
    (tmp_path / "corrections.txt").write_text("put orders 18 customer=Bob\n", encoding="utf-8")
    lines = [line for page in SHELL_PAGES for line in re.findall("^pyomid .*$", "".join(fenced(page)), re.MULTILINE)]
    assert len(lines) > 4
    for line in lines:
        done = subprocess.run(
            ["bash", "-c", re.sub("(/data|/backups)/", rf"{tmp_path}\1/", f'"$PYTHON" -m {line}')],
            cwd=tmp_path,
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_readme_example_of_spark_reads_what_the_client_wrote(tmp_path: Path) -> None:
    of_client, of_spark = (block.replace("/tmp/", f"{tmp_path}/") for block in blocks("README.md"))
    run_script(of_client, tmp_path)
    for _ in range(2):
        assert run_script(of_spark, tmp_path).strip() == blocks("README.md", "text")[1].strip()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_etl_prints_what_its_page_shows(tmp_path: Path) -> None:
    command, _, shown = blocks("docs/spark.md", "console")[0].partition("\n")
    assert command == "$ python examples/etl.py"
    code = (REPOSITORY / "examples" / "etl.py").read_text(encoding="utf-8")
    assert run_script(code, tmp_path, str(tmp_path)).strip() == shown.strip()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_notebook_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    stored = nbformat.read(REPOSITORY / "examples" / "notebook.ipynb", as_version=4)
    nbformat.validate(stored)
    shown = printed(stored)
    assert "image/png" in " ".join(shown)
    NotebookClient(stored, timeout=540, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert printed(stored) == shown


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("page", "then"), [("docs/spark.md", "docs/spark-reference.md"), ("docs/change-data.md", "")])
def test_examples_of_spark_run_as_they_stand(tmp_path: Path, page: str, then: str) -> None:
    run_page(page, tmp_path, then=then)


RUN_ELSEWHERE = {
    "docs/client.md": "tests/client/test_client_docs.py",
    "docs/shell.md": "tests/client/test_client_shell.py",
    "docs/web-service.md": "tests/process/test_web_service.py",
    "docs/api/testing.md": "tests/simulation/test_documented.py",
}


@pytest.mark.fast
def test_every_page_with_an_example_is_run_by_a_test() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "docs/api").glob("*.md")]
    for page in pages:
        name = str(page.relative_to(REPOSITORY))
        if "```python" in page.read_text(encoding="utf-8"):
            elsewhere = RUN_ELSEWHERE.get(name)
            text = (REPOSITORY / elsewhere).read_text(encoding="utf-8") if elsewhere else here
            assert (page.name if elsewhere else f'"{name}"') in text, name
