"""Golden scripts: readable scenarios of transactions, run through the public client on any store.

    title  P4 lost update: of two transactions that read and write one cell, one aborts
    source Berenson et al. 1995

    table test                       level cell or row may follow; every table has the one family f
    given                            one transaction, committed and completed before the first line
        put test 1 f:v = 100

    T1 begin                         sessions are capitalised; each has its own connection
    T1 get test 1             -> f:v = 100
    T1 put test 1 f:v = 120
    T1 commit
    T2 commit                 -> conflict

Commands of a session: begin, begin leased, get, scan, open, next, rest, put, delete, claim, flush, save, back, doom,
commit, rollback. `open` starts a scan; `next` shows one row of it and `rest` the others. `unchecked` after a put makes
it a conflict-free write. `back` rolls back to the last `save`. `dies at POINT` after commit or rollback kills the
client at a named crash point and leaves everything as it is then.
Commands of the stage: settle (finish background completion and healing), time passes (W moves past every start without
a lease), compact TABLE, sanitize, verify, cells TABLE, commit table, history holds write skew.

A line without `->` must succeed. Results: `nothing`; `f:a = 1, f:b = 2` for a row; `1 f:a = 1; 2 f:a = 2` for a scan;
the word of an error (conflict, too old, ended, unknown, unavailable, misuse); the stage's counts.

The whole run is also recorded and judged by `checker`, so a script cannot pass with an anomaly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import pyomid
from pyomid.errors import (
    ConflictError,
    Misuse,
    OmidError,
    OutcomeUnknown,
    SnapshotTooOld,
    TransactionEnded,
    Unavailable,
)
from pyomid.testing import checker
from pyomid.testing.history import Item, Outcome, Recorder, Transaction, Write

if TYPE_CHECKING:
    from stages import GoldenClient

FAMILY: Final = "f"


# ---------------------------------------------------------------- the text


@dataclass(frozen=True, slots=True)
class Statement:
    """One line: its session ("" is the stage), its words, and the expected result (None: success)."""

    line: int
    text: str
    session: str
    words: tuple[str, ...]
    expected: str | None


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed script. `tables`: name → conflict level; `given`: the words of each initial put."""

    name: str
    title: str
    tables: dict[str, str]
    given: tuple[tuple[str, ...], ...]
    statements: tuple[Statement, ...]

    @property
    def needs_clock(self) -> bool:
        """Whether only a stage with a manual clock can run it. `commit table` counts: a real TSO deletes completed
        entries after a while."""
        return any(_CLOCK_VERBS & set(statement.words) for statement in self.statements)


def load_scripts(folder: Path) -> list[Script]:
    """Return the scripts in all `*.txt` files of a folder, sorted by name."""
    return [parse(path.stem, path.read_text()) for path in sorted(folder.glob("*.txt"))]


def parse(name: str, text: str) -> Script:
    """Return the parsed script; `Misuse` names a line that cannot be parsed."""
    title, tables, given, statements = "", {}, [], []
    in_given = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#")[0].rstrip()
        if not line:
            continue
        said, _, expected = (part.strip() for part in line.partition("->"))
        words = tuple(said.split())
        if in_given and line[0].isspace():
            given.append(words)
            continue
        in_given = words == ("given",)
        if words[0] == "title":
            title = line.removeprefix("title").strip()
        elif words[0] == "table":
            tables[words[1]] = words[3] if words[2:3] == ("level",) else "cell"
        elif words[0] != "source" and not in_given:
            statements.append(_statement(name, number, said, words, expected or None))
    return Script(name, title, tables, tuple(given), tuple(statements))


def _statement(name: str, number: int, said: str, words: tuple[str, ...], expected: str | None) -> Statement:
    if words[0][0].isupper():
        session, words = words[0], words[1:]
        known = words[:1] and words[0] in _SESSION_VERBS
    else:
        session, known = "", words[0] in _STAGE_VERBS
    if not known:
        raise Misuse(f"{name} line {number}: {said!r} is not a command of a {'session' if session else 'stage'}")
    return Statement(number, said, session, words, expected)


_SESSION_VERBS: Final = frozenset(
    {"begin", "get", "scan", "open", "next", "rest", "put", "delete", "claim", "flush", "save", "back"}
    | {"doom", "commit", "rollback"}
)
_STAGE_VERBS: Final = frozenset({"settle", "time", "compact", "sanitize", "verify", "cells", "commit", "history"})
_CLOCK_VERBS: Final = frozenset({"time", "compact", "sanitize", "dies", "table"})


# ---------------------------------------------------------------- the interface of a stage


class ClientDied(SystemExit):
    """Raised at a session's crash point; nothing of the session runs afterwards. It ends a background thread
    silently."""


class Stage(Protocol):
    """One empty database and its maintenance. Every script gets a new one."""

    def create_table(self, name: str, family: str, level: str) -> None: ...
    def connect(self) -> GoldenClient: ...

    def settle(self) -> None:
        """Finish all completions and heals of live clients."""

    def pass_time(self) -> None:
        """Let W pass all starts handed out so far, up to the first one that holds a lease."""

    def compact(self, table: str) -> int:
        """Compact the table up to W; return the number of orphaned cells dropped."""

    def sanitize(self) -> int:
        """Sanitize; return the number of commit-table entries removed."""

    def verify(self) -> list[str]:
        """Return the violations found in the store, one line each."""

    def count_cells(self, table: str) -> tuple[int, int]:
        """Return (cells, shadow cells)."""

    def count_commit_entries(self) -> int: ...
    def close(self) -> None: ...


# ---------------------------------------------------------------- the run


class ScriptFailed(AssertionError):
    """A line had another result than expected; the message shows the script up to it."""


def run(script: Script, stage: Stage) -> checker.Verdict:
    """Run the script and return the verdict; `ScriptFailed` at the first line with another result than expected,
    `checker.Violation` at an anomaly."""
    play = _Play(script, stage)
    try:
        play.prepare()
        for statement in script.statements:
            play.step(statement)
        return checker.demand(play.recorder.history())
    finally:
        play.close()


@dataclass(slots=True)
class _Session:
    client: GoldenClient
    transaction: pyomid.Transaction | None = None
    record: Transaction | None = None
    go_back: Callable[[], None] | None = None
    open_scan: Iterator[tuple[bytes, dict[bytes, bytes]]] | None = None
    kept: int = 0
    """Number of recorded operations at the last `save`."""
    count: int = 0
    dead: bool = False


@dataclass(slots=True)
class _Play:
    script: Script
    stage: Stage
    recorder: Recorder = field(default_factory=Recorder)
    sessions: dict[str, _Session] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    writes: int = 0

    def prepare(self) -> None:
        for table, level in self.script.tables.items():
            self.stage.create_table(table, FAMILY, level)
        if self.script.given:
            for words in (("begin",), *self.script.given, ("commit",)):
                self._act("Given", words)
            self.stage.settle()

    def step(self, statement: Statement) -> None:
        try:
            actual = self._act(statement.session, statement.words)
        except OmidError as error:
            actual = _word_of(error)
            if statement.expected is None or statement.expected != actual:
                raise self._failed(statement, f"{actual}: {error}") from error
        if statement.expected is not None and actual != statement.expected:
            raise self._failed(statement, actual)
        self.done.append(f"{statement.line:4} {statement.text}{f'  -> {actual}' if actual else ''}")

    def close(self) -> None:
        for session in self.sessions.values():
            if not session.dead:
                session.client.close()
        self.stage.close()

    def _failed(self, statement: Statement, actual: str) -> ScriptFailed:
        before = "\n".join(self.done)
        return ScriptFailed(
            f"{self.script.name}: {self.script.title}\n{before}\n"
            f"{statement.line:4} {statement.text}\n     expected: {statement.expected or 'success'}\n"
            f"     actual:   {actual or 'success'}"
        )

    def _act(self, session: str, words: tuple[str, ...]) -> str:
        return self._session_act(session, words) if session else self._stage_act(words)

    # ------------------------------------------------------------ the stage

    def _stage_act(self, words: tuple[str, ...]) -> str:
        match words:
            case ("settle",):
                self.stage.settle()
            case ("time", "passes"):
                self.stage.settle()
                self.stage.pass_time()
            case ("compact", table):
                return f"{self.stage.compact(table)} orphans dropped"
            case ("sanitize",):
                return f"{self.stage.sanitize()} entries removed"
            case ("verify",):
                return "; ".join(self.stage.verify()) or "clean"
            case ("cells", table):
                cells, shadows = self.stage.count_cells(table)
                return f"{cells} cells, {shadows} shadow cells"
            case ("commit", "table"):
                return f"{self.stage.count_commit_entries()} entries"
            case ("history", "holds", "write", "skew"):
                if checker.check(self.recorder.history()).write_skew is None:
                    return "no write skew"
            case _:
                raise Misuse(f"{' '.join(words)!r} is not a command of a stage")
        return ""

    # ------------------------------------------------------------ sessions

    def _session_act(self, name: str, words: tuple[str, ...]) -> str:
        session = self.sessions.get(name)
        if session is None or session.dead:
            session = self.sessions[name] = _Session(self.stage.connect())
        if words[0] == "begin":
            self._begin(name, session, lease=words[1:] == ("leased",))
            return ""
        transaction, record = session.transaction, session.record
        if transaction is None or record is None:
            raise Misuse(f"{name} has not begun")
        match words:
            case ("get", table, row, *column):
                return self._get(transaction, record, table, row, column[0] if column else None)
            case ("scan", table, *rest):
                return self._scan(transaction, record, table, rest)
            case ("open", table):
                session.open_scan = transaction.table(table).scan()
            case ("next" | "rest" as verb,) if session.open_scan is not None:
                return _shown_rows(islice(session.open_scan, 1 if verb == "next" else None))
            case ("put", table, row, column, "=", value, *unchecked):
                self._put(name, transaction, record, Item(table, row, column), value, conflict=not unchecked)
            case ("delete", table, row, *column):
                self._delete(transaction, record, table, row, column[0] if column else None)
            case ("claim", table, row, *column):
                transaction.claim(table, [row.encode()], [each.encode() for each in column] or None)
            case ("flush",):
                transaction.flush()
            case ("save",):
                session.go_back, session.kept = transaction.savepoint().rollback, len(record.operations)
            case ("back",) if session.go_back is not None:
                session.go_back()
                since = record.operations[session.kept :]
                record.operations[session.kept :] = [each for each in since if not isinstance(each, Write)]
            case ("doom",):
                transaction.mark_rollback_only()
            case ("commit" | "rollback" as verb, *death):
                self._end(session, transaction, record, verb, death[2] if death else None)
            case _:
                raise Misuse(f"{name}: {' '.join(words)!r} is not possible here")
        return ""

    def _begin(self, name: str, session: _Session, *, lease: bool) -> None:
        session.count += 1
        session.record = self.recorder.begin_called(name if session.count == 1 else f"{name}'{session.count}")
        session.transaction = session.client.database.begin(lease=lease)
        self.recorder.begin_answered(session.record, session.transaction.start_ts)

    def _get(
        self, transaction: pyomid.Transaction, record: Transaction, table: str, row: str, column: str | None
    ) -> str:
        found = transaction.table(table).get(row.encode(), [column.encode()] if column else None) or {}
        for name in {column} if column else {*map(bytes.decode, found), *self._known_columns(table, row)}:
            value = found.get(name.encode())
            self.recorder.read(record, Item(table, row, name), value.decode() if value is not None else None)
        return _shown_row(found) or "nothing"

    def _known_columns(self, table: str, row: str) -> set[str]:
        return {
            write.item.column
            for txn in self.recorder.history().transactions
            for write in txn.writes()
            if write.item[:2] == (table, row)
        }

    def _scan(self, transaction: pyomid.Transaction, record: Transaction, table: str, rest: list[str]) -> str:
        options = _scan_options(rest)
        start, stop = options.get("from", ""), options.get("to")
        limit = int(options["limit"]) if "limit" in options else None
        rows = list(transaction.table(table).scan(start.encode(), stop.encode() if stop else None, limit=limit))
        if limit is not None and len(rows) == limit:
            stop = rows[-1][0].decode() + "\0"
        found = [
            (Item(table, row.decode(), column.decode()), value.decode())
            for row, cells in rows
            for column, value in cells.items()
        ]
        self.recorder.scan(record, table, start, stop, found)
        wanted = options.get("where")
        return _shown_rows((row, cells) for row, cells in rows if _matches(cells, wanted))

    def _put(
        self, name: str, transaction: pyomid.Transaction, record: Transaction, item: Item, value: str, *, conflict: bool
    ) -> None:
        """Put the value with a tag, so that the history can distinguish two writes of equal values."""
        self.writes += 1
        tagged = f"{value}~{name}.{self.writes}"
        cells = {item.column.encode(): tagged.encode()}
        transaction.table(item.table).put(item.row.encode(), cells, conflict=conflict)
        self.recorder.write(record, item, tagged)

    def _delete(
        self, transaction: pyomid.Transaction, record: Transaction, table: str, row: str, column: str | None
    ) -> None:
        transaction.table(table).delete(row.encode(), [column.encode()] if column else None)
        for name in {column} if column else self._known_columns(table, row):
            self.recorder.write(record, Item(table, row, name), None)

    def _end(
        self, session: _Session, transaction: pyomid.Transaction, record: Transaction, verb: str, point: str | None
    ) -> None:
        action = transaction.commit if verb == "commit" else transaction.rollback
        if verb == "commit" and record.commit_called is None:
            self.recorder.commit_called(record)
        if point is not None:
            session.client.die_at(point, action)
            session.dead = True
            return
        outcome = Outcome.ABORTED
        try:
            action()
            outcome = Outcome.COMMITTED if verb == "commit" else Outcome.ABORTED
        except OutcomeUnknown:
            outcome = Outcome.UNKNOWN
            raise
        finally:
            if record.commit_answered is None:
                self.recorder.ended(record, outcome, transaction.commit_ts)


def _scan_options(words: list[str]) -> dict[str, str]:
    """Parse the options of a scan: from A, to B, limit N, where COLUMN = VALUE, in any order."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        name = rest.pop(0)
        if name == "where":
            options[name] = " ".join(rest[:3])
            rest = rest[3:]
        elif name in ("from", "to", "limit") and rest:
            options[name] = rest.pop(0)
        else:
            raise Misuse(f"unknown option {name!r} of a scan; known: from, to, limit, where")
    return options


def _without_tag(value: bytes) -> str:
    return value.decode().split("~")[0]


def _shown_rows(rows: Iterable[tuple[bytes, dict[bytes, bytes]]]) -> str:
    return "; ".join(f"{row.decode()} {_shown_row(cells)}" for row, cells in rows) or "nothing"


def _shown_row(cells: dict[bytes, bytes]) -> str:
    return ", ".join(f"{column.decode()} = {_without_tag(value)}" for column, value in sorted(cells.items()))


def _matches(cells: dict[bytes, bytes], wanted: str | None) -> bool:
    if wanted is None:
        return True
    column, value = re.split(r" = ", wanted)
    found = cells.get(column.encode())
    return found is not None and _without_tag(found) == value


def _word_of(error: OmidError) -> str:
    for kind, word in _WORDS:
        if isinstance(error, kind):
            return word
    return error.code


_WORDS: Final[tuple[tuple[type[OmidError], str], ...]] = (
    (SnapshotTooOld, "too old"),
    (ConflictError, "conflict"),
    (TransactionEnded, "ended"),
    (OutcomeUnknown, "unknown"),
    (Unavailable, "unavailable"),
    (Misuse, "misuse"),
)
