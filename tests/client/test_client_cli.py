"""`pyomid status` and `pyomid tables`: what they print, and how they say what is wrong."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pyomid
from pyomid import crashpoints
from pyomid.cli import main
from pyomid.errors import Misuse

pytestmark = pytest.mark.fast


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_tables_are_created_listed_and_dropped(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "tables", url, "create", "orders", "f", "g", "--conflict-level", "row")[0] == 0
    _, listed, _ = run(capsys, "tables", url)
    assert "orders   families f, g   conflict level row" in listed
    assert run(capsys, "tables", url, "alter", "orders", "--conflict-level", "cell")[0] == 0
    assert "conflict level cell" in run(capsys, "tables", url)[1]
    assert run(capsys, "tables", url, "drop", "orders", "--yes")[0] == 0
    with pyomid.connect(url) as db:
        assert "orders" not in [table.name for table in db.tables()]


def test_a_table_is_dropped_only_when_its_name_is_typed(
    memory_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "tables", memory_url, "create", "orders", "f")
    for typed, code in (("order", 1), ("orders", 0)):
        monkeypatch.setattr(builtins, "input", lambda prompt, typed=typed: typed)
        assert run(capsys, "tables", memory_url, "drop", "orders")[0] == code
    assert run(capsys, "tables", memory_url, "list")[1] == "no tables\n"


def test_a_drop_that_was_left_half_is_shown_and_finished(memory_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds sanitizing back, and is no table to anybody: without its name nobody knows why."""
    with pyomid.connect(memory_url) as db:
        db.create_table("orders", families=["f"])
        crashpoints.arm_action("client.drop.decided", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            db.drop_table("orders")
        crashpoints.disarm()
        _, listed, _ = run(capsys, "tables", memory_url)
        assert f"its drop is unfinished and blocks sanitizing; to finish it: pyomid tables {memory_url}" in listed
        assert run(capsys, "tables", memory_url, "drop", "orders", "--yes")[0] == 0
        assert db._core.deployment.catalog.entry("orders") is None
    assert run(capsys, "tables", memory_url, "list")[1] == "no tables\n"


def test_status_says_what_a_person_asks(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pyomid.connect(url) as db:
        db.create_table("orders", families=["f"])
        held = db.begin(lease=True)
        with db.begin() as tx:
            tx.table("orders").put(b"k", {b"f:x": b"1"})
        code, text, _ = run(capsys, "status", url)
        _, as_json, _ = run(capsys, "status", url, "--json")
        held.rollback()
    assert code == 0
    of_tso = ("epoch", "LWM", "in flight", "commit table")
    of_folder = ("clock", "processes", str(os.getpid()))
    for word in (*(of_folder if url.startswith("omid://") else of_tso), "W ", "H ", "leases", "orders"):
        assert word in text
    values: dict[str, Any] = json.loads(as_json)
    assert str(held.start_ts) in text or url.startswith("omid://")  # it shows five
    assert held.start_ts in values["tso"]["leases"]  # others hold some of their own in a folder that tests share
    assert values["tso"]["last_ts"] >= (tx.commit_ts or 0)
    assert [table["name"] for table in values["tables"] if table["name"] == "orders"] == ["orders"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("status", "omid://host/db"), "names a host"),
        (("status", "omid-memory:x?leaseSecond=1"), "did you mean leaseSeconds?"),
        (("tables", "omid-memory:cli", "drop", "nothing", "--yes"), "no table 'nothing'"),
        (("tables", "omid-memory:cli", "create", "a b", "f"), "letters, digits"),
        (("tables", "omid-memory:cli", "alter", "nothing", "--conflict-level", "row"), "no table 'nothing'"),
        (("init", "omid-memory:cli", "--conflict-level", "row"), "in this one each table has its own"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, _, errors = run(capsys, *arguments)
    assert code == 1
    assert said in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("command", ["tables", "status", "compact", "sanitize", "verify", "top", "shell"])
def test_a_mistyped_folder_is_refused_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, _, errors = run(capsys, command, f"omid://{tmp_path}/mistyped")
    assert (code, errors.count("is not a pyomid folder")) == (1, 1)
    with pytest.raises(Misuse, match="creates a database"):
        pyomid.connect(f"omid://{tmp_path}/mistyped", create=False)
    assert not list(tmp_path.iterdir())


def test_without_its_extra_a_cluster_is_refused_with_what_to_install() -> None:
    program = "import sys; sys.modules['kazoo'] = None; from pyomid.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "status", "omid+hbase://127.0.0.1:1/hbase"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "pyomid[hbase]" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_goes_away_is_no_failure_of_ours() -> None:
    """As `pyomid status URL | head -1` does."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "pyomid", "status", "omid-memory:piped"]
    with open(write_end, "wb") as nobody:
        done = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_folder_that_holds_no_database_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["status", f"omid://{tmp_path}/slip"],
        ["tables", f"omid://{tmp_path}/slip?create=false"],
    ):
        code, _, said = run(capsys, *arguments)
        assert code == 1
        assert "is not a pyomid folder" in said
    assert not list(tmp_path.iterdir())


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"pyomid {pyomid.__version__}\n"
