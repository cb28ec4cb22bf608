"""`pyomid shell`: what it shows, what it writes, and what becomes of a transaction when it is interrupted."""

from __future__ import annotations

import io
import itertools
import json
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyomid
from pyomid import crashpoints
from pyomid.cli import main
from pyomid.cli.shell import Output
from pyomid.cli.shell_session import Session
from pyomid.cli.shell_text import bytes_of, text_of, words_of
from pyomid.database.database import Database

pytestmark = pytest.mark.fast

COLUMNS: dict[str, Any] = {
    "day": "date",
    "number": "long",
    "customer": "string",
    "total": "decimal(10,2)",
    "raw": "binary",
    "paid": "boolean",
    "tags": Annotated[list[str], '{"type":"array","elementType":"string","containsNull":true}'],
}


@pytest.fixture
def shop(memory_url: str) -> Iterator[Database]:
    with pyomid.connect(memory_url) as database:
        database.create_table("t", families=["f"])
        database.create_table("orders", families=["f"])
        columns = {name: getattr(kind, "__metadata__", [kind])[0] for name, kind in COLUMNS.items()}
        database.set_schema("orders", columns, row_key=["day", "number"])
        yield database


Script = Callable[..., tuple[int, str, str]]


@pytest.fixture
def script(shop: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Script:
    """Of a text and options: the exit code, what is printed, and the errors."""

    def run(text: str, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        code = main(["shell", shop.url, *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture(autouse=True)
def no_crash_point() -> Iterator[None]:
    yield
    crashpoints.disarm()


def row(shop: Database, key: bytes = b"k") -> dict[bytes, bytes]:
    with shop.snapshot() as tx:
        return tx.table("t").get(key) or {}


def test_a_script_reads_and_writes_by_the_schema(shop: Database, script: Script) -> None:
    text = r"""
    # a comment
    put orders 2026-02-28 17 customer="Ann\tO'Hara" total=12.50 raw=\x00\xffa paid=true tags='["a", "b\n"]'
    put orders 2026-03-01 4 customer=null
    put orders 2026-03-01 5 customer="null" paid=false
    get orders 2026-02-28 17
    get orders 2026-03-01 5 customer
    scan orders prefix=2026-03-01 reverse limit=1
    delete orders 2026-03-01 4
    scan orders start=2026-03-01,5
    """
    code, out, errors = script(text)
    assert (code, errors) == (0, "")
    assert re.split(" {2,}", out.splitlines()[2]) == [
        *("2026-02-28", "17", r"Ann\tO'Hara", "12.50", r"\x00\xffa", "true", r'["a", "b\n"]'),
    ]
    assert out.splitlines()[5].split() == ["2026-03-01", "5", '"null"']
    assert out.count("2026-03-01") == 3
    with shop.snapshot() as tx:
        rows = list(tx.table("orders", codec=dict).scan())
    assert [(each["number"], each["customer"]) for each in rows] == [(17, "Ann\tO'Hara"), (5, "null")]
    assert (rows[0]["raw"], rows[0]["tags"]) == (b"\0\xffa", ["a", "b\n"])


def test_a_table_without_schema_is_shown_as_bytes(shop: Database, script: Script) -> None:
    text = r"""
    put t k f:a="x y" f:b=\x00\xff f:c=1
    put t k f:c=null
    get t k
    get t k f:b
    scan t prefix=k
    delete t k f:a
    get t nothing
    """
    code, out, _ = script(text)
    assert code == 0
    assert out.splitlines() == [r"k   f:a=x y   f:b=\x00\xff", r"k   f:b=\x00\xff", r"k   f:a=x y   f:b=\x00\xff"]
    assert row(shop) == {b"f:b": b"\x00\xff"}
    code, out, _ = script("get t k\ntables\ndescribe orders", "--json")
    assert json.loads(out.splitlines()[0]) == {"key": "k", "f:b": r"\x00\xff"}
    assert {"column": "total", "type": "decimal(10,2)", "stored in": "f:total"} in map(json.loads, out.splitlines())


def test_a_transaction_of_the_shell_reads_the_past(shop: Database, script: Script) -> None:
    with shop.begin(lease=True):
        for value in (b"old", b"new"):
            with shop.begin() as tx:
                tx.table("t").put(b"k", {b"f:a": value})
        assert tx.commit_ts is not None
        code, out, _ = script(f"begin at={tx.commit_ts - 1}\nget t k\ncommit\nget t k")
    assert (code, out) == (0, "k   f:a=old\nk   f:a=new\n")
    assert "at='noon' is not a valid time" in script("begin at=noon")[2]
    assert "begin accepts one at=" in script("begin at=1 at=2")[2]


def test_transactions_and_savepoints_are_those_of_the_client(shop: Database, script: Script) -> None:
    lines = "begin; put t k f:a=1; savepoint one; put t k f:a=2; rollback to one; get t k; commit; begin read-only"
    code, out, errors = script("\n".join(lines.split("; ")) + "\nput t k f:a=3\n")
    assert (code, out) == (1, "k   f:a=1\n")
    assert errors.startswith("pyomid: line 9: ")
    assert "read-only" in errors
    assert row(shop) == {b"f:a": b"1"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("begin\nput t k f:a=1", "the script ended without commit"),
        ("begin\nput t k f:a=1\nptu t k f:a=2\ncommit", "line 3: no command 'ptu'; did you mean put?"),
        (
            "begin\nput t k f:a=1\nput orders 2026-02-28 17 total=1.234\ncommit",
            "line 3: table 'orders', column 'total'",
        ),
        ("begin\nput t k f:a=1\nput orders x 17 total=1\ncommit", "'x' is not a valid date"),
        ("begin\nput t k f:a=1\nget nothing 1\ncommit", "line 3: there is no table 'nothing'"),
        ("begin\nput t k f:a=1\nput t k f:a='1\ncommit", "unclosed quote or trailing backslash: "),
        ("begin\nput t k f:a=1\nrollback to nowhere\ncommit", "no savepoint 'nowhere'"),
        ("commit", "no transaction is open"),
        ("get orders 2026-02-28", "a key of orders has 2 parts"),
        ("scan t limit 2", "'limit' is not start=, stop=, prefix=, limit= or reverse"),
        ("scan t lmit=2", "'lmit=2' is not start="),
    ],
    ids=itertools.count(),
)
def test_a_script_that_fails_leaves_nothing_uncommitted(shop: Database, script: Script, lines: str, said: str) -> None:
    code, out, errors = script(lines)
    assert (code, out) == (1, "")
    assert said in errors
    assert row(shop) == {}


@given(st.binary(min_size=1))
def test_what_is_shown_can_be_typed_again(data: bytes) -> None:
    assert bytes_of(text_of(data)) == data
    (word,) = words_of(f'"{text_of(data).replace(chr(34), chr(92) + chr(34))}"')
    assert bytes_of(word.text) == data
    assert words_of("a 'b c'd \"e\"") == words_of("  a\t'b c'd  'e'")
    assert [word.text for word in words_of("put t 'b c'd")] == shlex.split("put t 'b c'd")


def test_the_page_shows_what_the_shell_says(
    memory_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "shell.md").read_text(encoding="utf-8")
    shown = "".join(re.findall(r"```text\n(.*?)```", page, re.DOTALL)).splitlines()
    typed = iter(re.findall(r"^pyomid.*?> (.*)$", "\n".join(shown), re.MULTILINE))
    with pyomid.connect(memory_url) as database:
        database.create_table("accounts", families=["f"])
        columns = {"id": "long", "customer": "string", "total": "decimal(10,2)"}
        database.create_table("orders", columns, row_key="id")

        def read_line(prompt: str) -> str:
            line = next(typed, "exit")
            print(prompt + line)
            return line

        with Session(database, Output(as_json=False, verbose=True)) as session:
            session.run_interactively(read_line)
    _, *said, _ = capsys.readouterr().out.splitlines()
    assert without_timestamps(said) == without_timestamps(shown)


def without_timestamps(lines: list[str]) -> list[str]:
    numbers = r"\b(pyomid|at|began|committed) \d{3,}\b( \([-\d]{10} [\d:.]{12}Z\))?"
    return [re.sub(numbers, lambda match: f"{match[1]} N{' (time)' if match[2] else ''}", line) for line in lines]


class Told(Output):
    """As a person is told."""

    def __init__(self) -> None:
        super().__init__(as_json=False, verbose=True)
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def run_interactively(shop: Database, *lines: str | type[BaseException]) -> list[str]:
    """A session in which these are typed; an error is what the terminal raises then."""
    typed = iter([*lines, EOFError])

    def read_line(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    told = Told()
    with Session(shop, told) as session:
        assert session.run_interactively(read_line) == 0
    crashpoints.disarm()
    return told.said


def ctrl_c(times: int) -> Callable[[], None]:
    def press() -> None:
        crashpoints.disarm()
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)  # handled at once, so that two never count as one

    return press


def test_ctrl_c_at_the_prompt_leaves_a_transaction_open(shop: Database) -> None:
    said = run_interactively(shop, "begin", "put t k f:a=1", KeyboardInterrupt, "commit", KeyboardInterrupt)
    assert "stays open: commit or rollback" in said[2]
    assert said[3].startswith("committed ")
    assert said[4] == "interrupted; no transaction is open"
    assert row(shop) == {b"f:a": b"1"}


@pytest.mark.parametrize("lines", [("begin", "put t k f:a=1", "commit"), ("put t k f:a=1",)])
def test_ctrl_c_in_a_commit_waits_for_its_answer(shop: Database, lines: tuple[str, ...]) -> None:
    crashpoints.arm_action("client.commit.before", ctrl_c(1))
    assert run_interactively(shop, *lines)[-1].startswith("committed ")
    assert row(shop) == {b"f:a": b"1"}


@pytest.mark.parametrize(
    ("point", "truth"),
    [
        ("client.flush.before", ("can only be rolled back", "is rolled back")),
        ("client.commit.before", ("may have committed",)),
        ("client.commit.answered", ("may have committed",)),
    ],
)
@pytest.mark.parametrize("lines", [("begin", "put t k f:a=1", "commit"), ("put t k f:a=1",)])
def test_a_second_ctrl_c_tells_the_true_outcome(
    shop: Database, lines: tuple[str, ...], point: str, truth: tuple[str, ...]
) -> None:
    crashpoints.arm_action(point, ctrl_c(2))
    with pyomid.connect(f"{shop.url}?flushBytes=1") as flushing:  # otherwise the put is written at the commit
        said = run_interactively(flushing if point == "client.flush.before" else shop, *lines)
    assert any(each.startswith("interrupted; transaction ") and any(t in each for t in truth) for each in said), said


def test_a_script_that_is_interrupted_ends_after_the_answer(shop: Database, script: Script) -> None:
    crashpoints.arm_action("client.commit.before", ctrl_c(1))
    code, _, errors = script("put t k f:a=1\nput t k f:a=2\n")
    assert code == 130
    assert re.search(r"transaction \d+ committed at \d+", errors)
    assert row(shop) == {b"f:a": b"1"}


def test_a_conflict_ends_the_transaction_and_not_the_shell(shop: Database, capsys: pytest.CaptureFixture[str]) -> None:
    class Between(Told):
        def note(self, text: str) -> None:
            if text.startswith("began"):
                with shop.begin() as tx:
                    tx.table("t").put(b"k", {b"f:a": b"theirs"})

    told = Between()
    typed = iter(["begin", "put t k f:a=ours", "commit", "put t k f:a=again", "exit"])
    with Session(shop, told) as session:
        assert session.run_interactively(lambda prompt: next(typed)) == 0
    assert "OMID-CONFLICT" in capsys.readouterr().err
    assert row(shop) == {b"f:a": b"again"}
