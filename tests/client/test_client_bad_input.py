"""Bad input: each a clear error that names the value and the rule, and nothing is lost or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyomid
from pyomid.database.database import Database
from pyomid.database.tables.table import Table
from pyomid.errors import Misuse, MisuseType, TransactionEnded, UnknownTable

pytestmark = pytest.mark.fast

BAD_USES: list[tuple[str, Callable[[Table], Any], type[Misuse], str]] = [
    ("empty row key", lambda t: t.put(b"", {b"f:x": b"1"}), Misuse, "must not be empty"),
    ("row key of text", lambda t: t.put("k", {b"f:x": b"1"}), MisuseType, "row key 'k' is str, not bytes, encode it"),  # type: ignore[arg-type]
    ("row key None", lambda t: t.get(None), MisuseType, "row key None is NoneType"),  # type: ignore[arg-type]
    ("long row key", lambda t: t.put(b"k" * 70_000, {b"f:x": b"1"}), Misuse, "over this store's limit"),
    ("unknown family", lambda t: t.put(b"k", {b"h:x": b"1"}), Misuse, "b'h:x' is of a family that table 't'"),
    ("unknown family read", lambda t: t.get(b"k", [b"h:x"]), Misuse, "b'h:x' is of a family that table 't'"),
    ("unknown family deleted", lambda t: t.delete(b"k", [b"h"]), Misuse, "has no ':'"),
    ("unknown family scanned", lambda t: t.scan(columns=[b"h:x"]), Misuse, "it has f, g"),
    ("no colon", lambda t: t.put(b"k", {b"fx": b"1"}), Misuse, "b'fx' has no ':'"),
    ("empty qualifier", lambda t: t.put(b"k", {b"f:": b"1"}), Misuse, "b'f:' has an empty qualifier"),
    ("shadow suffix", lambda t: t.put(b"k", {b"f:x\xc2\x80": b"1"}), Misuse, "C2 80"),
    ("long qualifier", lambda t: t.put(b"k", {b"f:" + b"q" * 70_000: b"1"}), Misuse, "over this store's limit"),
    ("text column", lambda t: t.put(b"k", {"f:x": b"1"}), MisuseType, "column 'f:x' is str, not bytes"),  # type: ignore[dict-item]
    ("empty value", lambda t: t.put(b"k", {b"f:x": b""}), Misuse, "value of b'f:x' is empty"),
    ("text value", lambda t: t.put(b"k", {b"f:x": "1"}), MisuseType, "'1' is str, not bytes"),  # type: ignore[dict-item]
    ("number value", lambda t: t.put(b"k", {b"f:x": 1}), MisuseType, "1 is int, not bytes"),  # type: ignore[dict-item]
    ("None value", lambda t: t.put(b"k", {b"f:x": None}), MisuseType, "None is NoneType"),  # type: ignore[dict-item]
    ("long value", lambda t: t.put(b"k", {b"f:x": bytes(33 << 20)}), Misuse, "over this store's limit"),
    ("no cells", lambda t: t.put(b"k", {}), Misuse, "has no cells"),
    ("cells of a list", lambda t: t.put(b"k", [b"f:x"]), MisuseType, "not a mapping"),  # type: ignore[arg-type]
    ("keys of bytes", lambda t: t.rows(b"k"), MisuseType, "not a list of row keys"),  # type: ignore[arg-type]
    ("columns of bytes", lambda t: t.get(b"k", b"f:x"), MisuseType, "not a list of column names"),  # type: ignore[arg-type]
    ("columns of a number", lambda t: t.scan(columns=3), MisuseType, "not a list of column names"),  # type: ignore[arg-type]
    ("negative limit", lambda t: t.scan(limit=-1), Misuse, "limit -1 is negative"),
    ("limit of text", lambda t: t.scan(limit="1"), MisuseType, "limit '1' is str"),  # type: ignore[arg-type]
    ("start of text", lambda t: t.scan("a"), MisuseType, "start 'a' is str"),  # type: ignore[arg-type]
    ("stop of text", lambda t: t.scan(b"a", "b"), MisuseType, "stop 'b' is str"),  # type: ignore[arg-type]
    ("start behind prefix", lambda t: t.scan(b"b", prefix=b"a"), Misuse, "exclude all keys with prefix=b'a'"),
    (
        "stop before prefix",
        lambda t: t.scan(stop=b"7", prefix=b"a"),
        Misuse,
        "give whole keys as bounds, not the part after the prefix",
    ),
    ("stop at start", lambda t: t.scan(b"a5", b"a5", prefix=b"a"), Misuse, "exclude all keys with prefix=b'a'"),
    ("prefix of text", lambda t: t.scan(prefix="a"), MisuseType, "prefix 'a' is str"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("use", "kind", "said"), [bad[1:] for bad in BAD_USES], ids=[bad[0] for bad in BAD_USES])
def test_bad_input_is_refused_at_once_and_what_was_written_before_still_commits(
    db: Database, use: Callable[[Table], Any], kind: type[Misuse], said: str
) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        table.put(b"before", {b"f:x": b"1"})
        with pytest.raises(kind) as caught:
            use(table)
        assert said in str(caught.value)
        assert isinstance(caught.value, ValueError)
        assert len(str(caught.value)) < 400
    with db.begin() as tx:
        assert list(tx.table("t").scan()) == [(b"before", {b"f:x": b"1"})]


def test_one_bad_cell_of_a_put_leaves_the_others_unwritten(memory_db: Database) -> None:
    with memory_db.begin() as tx:
        with pytest.raises(Misuse):
            tx.table("t").put(b"k", {b"f:x": b"1", b"f:y": b""})
        assert tx.table("t").get(b"k") is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "1 to 200"),
        ("a b", "letters, digits"),
        ("-a", "must begin with"),
        ("x" * 201, "1 to 200"),
        ("PYOMID_X", "reserved for system tables"),
        ("omid_commit_table", "reserved for system tables"),
    ],
)
def test_bad_table_names_are_refused(memory_db: Database, name: str, said: str) -> None:
    with pytest.raises(Misuse, match=said):
        memory_db.create_table(name, families=["f"])


@pytest.mark.parametrize(
    ("families", "said"),
    [
        ([], "at least one"),
        ("f", "not a list"),
        (3, "not a list"),
        (["f", "f"], "twice"),
        (["a:b"], "without ':'"),
        ([""], "not a name"),
        ([".a"], "not a name"),
        (["\u00e9"], "not a name"),
        ([3], "family 3 is int"),
    ],
)
def test_bad_families_are_refused(memory_db: Database, families: Any, said: str) -> None:
    with pytest.raises(Misuse, match=said):
        memory_db.create_table("u", families=families)


NO_NUMBER = 10**30
BAD_ARGUMENTS: list[tuple[str, Callable[[Any], Any], type[Misuse], str]] = [
    ("place beyond all", lambda db: db.release_bookmark(NO_NUMBER), Misuse, "is not a valid timestamp"),
    (
        "place reversed",
        lambda db: db.changes("t", pyomid.Bookmark(1, 2)),
        Misuse,
        "its first number is greater than its second",
    ),
    ("place of texts", lambda db: db.changes("t", pyomid.Bookmark("1", "2")), MisuseType, "neither a bookmark nor"),  # type: ignore[arg-type]
    ("id that is no text", lambda db: db.run_once("\ud800", lambda tx: None), Misuse, "cannot be encoded as UTF-8"),
    ("name that is no text", lambda db: db.table_info("\ud800"), UnknownTable, "there is no table"),
    ("name that is too long", lambda db: db.table_info("x" * 300), UnknownTable, "there is no table 'x+…$"),
    ("scan after the end", lambda db: list(db.run(lambda tx: tx.table("t").scan())), TransactionEnded, "make a list"),
    ("table that is no name", lambda db: db.drop_table(["t"]), MisuseType, "is list, not str"),
    ("tables that are none", lambda db: db.compact(3), MisuseType, "tables 3 is neither a table name"),
    (
        "type that is none",
        lambda db: db.set_schema("t", {"id": []}, row_key="id"),
        MisuseType,
        "has no column type",
    ),
]


@pytest.mark.parametrize(
    ("use", "kind", "said"), [bad[1:] for bad in BAD_ARGUMENTS], ids=[bad[0] for bad in BAD_ARGUMENTS]
)
def test_bad_arguments_of_a_database_are_refused_at_once(
    memory_db: Database, use: Callable[[Any], Any], kind: type[Misuse], said: str
) -> None:
    """A place beyond all timestamps was sent to the TSO for a minute."""
    with pytest.raises(kind, match=said):
        use(memory_db)


def test_a_column_that_is_no_name_counts_nothing(memory_db: Database) -> None:
    memory_db.set_schema("t", {"id": int, "n": int}, row_key="id")
    with memory_db.begin() as tx, pytest.raises(MisuseType, match=r"a column name must be a string, not 3 \(int\)"):
        tx.table("t", codec=dict).increment(1, 3)  # type: ignore[arg-type]


def test_a_bad_conflict_level_is_refused(memory_db: Database) -> None:
    with pytest.raises(Misuse, match="'table' is not 'cell' or 'row'"):
        memory_db.create_table("u", families=["f"], conflict_level="table")


def test_the_system_tables_are_no_users_tables(memory_db: Database) -> None:
    memory_db.run_once("id", lambda tx: None)
    with pytest.raises(Misuse, match="reserved for system tables"):
        memory_db.drop_table("PYOMID_MARKERS")


@pytest.mark.parametrize("zeros", [240, 300])
def test_a_key_that_is_too_long_with_its_zeros_is_refused_at_once(tmp_path: Path, zeros: int) -> None:
    """A folder stores a zero byte of a key as two; a key of an index too, where the text is of the program's rows."""
    with pyomid.connect(f"omid://{tmp_path}/db") as db:
        db.create_table("t", ["f"])
        db.set_schema("t", {"id": int, "name": str}, row_key="id")
        db.create_index("t", "by_name", ["name"])
        with db.begin() as tx:
            table, rows = tx.table("t"), tx.table("t", codec=dict)
            table.put(bytes(200), {b"f:x": b"1"})
            with pytest.raises(Misuse, match=r"a zero byte counts twice\), over this store's limit of 498"):
                table.put(bytes(zeros) + b"x" * 20, {b"f:x": b"1"})
            with pytest.raises(Misuse, match="index 'by_name' of name cannot contain row"):
                rows.put({"id": 1, "name": "\0" * zeros})
            rows.put({"id": 1, "name": "short"})
        with db.snapshot() as tx:
            assert len(list(tx.table("t").scan())) == 2
            assert [row["id"] for row in tx.table("t", codec=dict).lookup("by_name", "short")] == [1]


class Mine(bytes):
    """As nobody writes it; numpy's compares without zeros at the end, and slowly."""

    def __len__(self) -> int:
        return 5

    def __eq__(self, other: object) -> bool:
        return False

    def __lt__(self, other: bytes) -> bool:
        return bytes(self) > bytes(other)

    def __hash__(self) -> int:
        return 7


@pytest.mark.parametrize("flushed", [False, True])
def test_of_a_subclass_of_bytes_the_bytes_are_kept(db: Database, flushed: bool) -> None:
    """What compares or measures itself in its own way would disturb other rows of its batch."""
    keys = [b"a", b"b\0", b"c"]
    with db.begin() as tx:
        table = tx.table("t")
        for key in keys:
            table.put(Mine(key), {Mine(b"f:x"): Mine(b"of " + key), Mine(b"f:y"): Mine(b"1")})
        table.delete(Mine(b"a"), [Mine(b"f:y")])
        with pytest.raises(Misuse, match="is empty"):
            table.put(b"d", {b"f:x": Mine(b"")})
        if flushed:
            tx.flush()
        assert table.get(Mine(b"c"), [Mine(b"f:x")]) == {b"f:x": b"of c"}
        own = list(table.scan(Mine(b"a"), Mine(b"d")))
    with db.snapshot() as tx:
        found = list(tx.table("t").scan())
    assert (
        found
        == own
        == [
            (b"a", {b"f:x": b"of a"}),
            (b"b\0", {b"f:x": b"of b\0", b"f:y": b"1"}),
            (b"c", {b"f:x": b"of c", b"f:y": b"1"}),
        ]
    )
    assert {type(each) for key, row in own for each in (key, *row, *row.values())} == {bytes}
