"""`pyomid status` and `pyomid tables`: what they print, and how they say what is wrong."""

from __future__ import annotations

import argparse
import builtins
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyomid
from pyomid import crashpoints
from pyomid.cli import main, whole_parser
from pyomid.errors import FolderMissing
from pyomid.types import UNCHECKED

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


def test_the_url_may_follow_the_action_of_tables(memory_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "tables", "create", memory_url, "orders", "f", "g", "--if-not-exists")[0] == 0
    assert run(capsys, "tables", "create", "--if-not-exists", memory_url, "orders", "f", "g")[0] == 0
    _, listed, _ = run(capsys, "tables", "list", memory_url)
    assert listed == run(capsys, "tables", memory_url)[1] == "  orders   families f, g   conflict level cell\n"
    assert run(capsys, "tables", "create", memory_url, "events")[0] == 0
    assert "events   families d" in run(capsys, "tables", memory_url)[1]
    assert run(capsys, "tables", "drop", memory_url, "orders", "--yes")[0] == 0


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


def test_status_says_what_a_person_asks_and_raw_has_every_counter(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pyomid.connect(url) as db:
        db.create_table("orders", families=["f"])
        held = db.begin(lease=True)
        with db.begin() as tx:
            tx.table("orders").put(b"k", {b"f:x": b"1"})
        code, text, _ = run(capsys, "status", url)
        _, raw, _ = run(capsys, "status", url, "--raw")
        _, as_json, _ = run(capsys, "status", url, "--json")
        held.rollback()
    assert code == 0
    is_folder = url.startswith("omid://")
    of_tso = ("epoch", "LWM", "in flight", "commit table", "leases_granted")
    of_folder = ("clock", "processes", str(os.getpid()), "unchecked")
    for word in (*(of_folder if is_folder else of_tso), "W ", "H ", "leases", "orders"):
        assert word in raw
    sentences = [line for line in text.splitlines() if not line.startswith("  ")]
    assert all(re.fullmatch(r"[A-Z0-9].*[.:]", line) for line in sentences)
    for said in ("on the starts", "newest timestamp", "and W is", "orders   families f"):
        assert said in text
    values: dict[str, Any] = json.loads(as_json)
    counters = [name for name in values["tso"]["counters"] if "_" in name and name != UNCHECKED]
    assert not [name for name in counters if name in text or name not in raw]
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
        (("init", "omid-memory:cli", "--conflict-level", "row"), "in this database each table has its own"),
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
    assert (code, errors.count("there is no database in")) == (1, 1)
    with pytest.raises(FolderMissing, match="and this call does not create one"):
        pyomid.connect(f"omid://{tmp_path}/mistyped", create=False)
    assert not list(tmp_path.iterdir())


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
        assert "there is no database in" in said
    assert not list(tmp_path.iterdir())


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"pyomid {pyomid.__version__}\n"


# ── the command line itself ──────────────────────────────────────────────────────────────────────────────────────


def every_command(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from every_command(command)


@pytest.mark.parametrize("columns", ["80", "250"])
def test_every_help_is_at_most_80_columns_wide(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    helps = {parser.prog: parser.format_help() for parser in every_command(whole_parser())}
    assert {"pyomid", "pyomid tso", "pyomid tables url alter", "pyomid hbase start"} <= set(helps)
    assert [(name, line) for name, text in helps.items() for line in text.splitlines() if len(line) > 80] == []


def test_bash_completes_commands_actions_and_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, script, _ = run(capsys, "completion", "bash")
    (tmp_path / "pyomid").write_text(script)

    def completed(*words: str) -> set[str]:
        line = " ".join(f"'{word}'" for word in words)
        ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_pyomid; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        command = ["bash", "--norc", "-c", f". '{tmp_path}/pyomid'; {ask}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return set(done.stdout.split())

    assert completed("pyomid", "ver") == {"verify"}
    assert completed("pyomid", "tables", "omid:///x", "dr") == {"drop"}
    assert "--grace-seconds" in completed("pyomid", "compact", "--g")
    _, script, _ = run(capsys, "completion", "zsh")
    assert script.startswith("#compdef pyomid")
    for command in every_command(whole_parser()):
        assert command.prog.split()[-1] in script


def test_completion_without_its_package_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, _, said = run(capsys, "completion", "bash")
    assert (code, said.count("pip install 'pyomid[shell]'")) == (1, 1)


def test_counts_have_one_style_in_every_command(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pyomid.connect(url) as db:
        db.create_table("many", ["f"])
        with db.begin() as tx:
            for number in range(1_234):
                tx.table("many").put(b"%d" % number, {b"f:x": b"1"})
        of_many = ("--table", "many")
        for command in (
            ["verify", url, *of_many],
            ["compact", url, *of_many],
            ["export", url, f"{tmp_path}/x", *of_many],
        ):
            code, text, _ = run(capsys, *command)
            assert (code, "1 234" in text) == (0, True), text
            assert not re.search(r"\d,\d{3}|1234\b", text), text


def test_a_terminal_shows_progress_on_standard_error_and_a_file_does_not(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db"
    with pyomid.connect(url) as db:
        db.create_table("orders", ["f"])
        with db.begin() as tx:
            tx.table("orders").put(b"k", {b"f:x": b"1"})
        db.backup(tmp_path / "backup")
        db.export_parquet(tmp_path / "files")
    commands = (
        ("orders", ["verify", url]),
        ("orders", ["compact", url]),
        ("orders", ["import", f"{tmp_path}/files", f"omid://{tmp_path}/imported"]),
        ("data.mdb", ["restore", f"{tmp_path}/backup", f"omid://{tmp_path}/restored"]),
    )
    for shown, command in commands:
        outer, inner = pty.openpty()
        termios.tcsetwinsize(inner, (24, 80))
        program = [sys.executable, "-m", "pyomid", *command]
        done = subprocess.run(program, stdout=subprocess.PIPE, stderr=inner, text=True, timeout=120, check=True)
        assert select.select([outer], [], [], 10)[0], f"{command} showed nothing"
        assert f"{shown}:" in os.read(outer, 10_000).decode(), command
        os.close(inner)
        os.close(outer)
        assert shown not in done.stdout.splitlines()[0]
    piped = subprocess.run([*program[:3], "verify", url], capture_output=True, text=True, timeout=120, check=True)
    assert piped.stderr == ""
    assert piped.stdout.splitlines()[-1].startswith("ok: no violation in ")
