"""The shell's commands, on one database and at most one open transaction.

Outside `begin` … `commit`, each command is its own transaction. The shell always reports a transaction's outcome as the
client determined it, even after an error or Ctrl-C:

    Ctrl-C …                        effect
    at the prompt                   the shell drops the line; an open transaction stays open
    during a read                   the shell shows no further rows; an open transaction stays open
    while writes are sent           an open transaction becomes rollback-only; a single command's is rolled back
    during a commit                 the shell waits for the reply; a second Ctrl-C stops waiting: the outcome is unknown
"""

from __future__ import annotations

import difflib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Final

from pyomid.cli.shell_text import Record, Rows, Word, pair_of, rows_of, words_of
from pyomid.cli.status import families_text, level_text
from pyomid.database.transaction import ENDED, State
from pyomid.errors import Misuse, OmidError
from pyomid.protocol.timestamps import dated
from pyomid.types import Column, TableInfo

if TYPE_CHECKING:
    from pyomid.cli.shell import Output
    from pyomid.database.database import Database
    from pyomid.database.transaction import Savepoint, Transaction

INTERRUPTED: Final = 130
SCAN_OPTIONS: Final = "start=, stop=, prefix=, limit= or reverse"


class Exit(Exception):
    """Raised by the command `exit`."""


class Session:
    """One run of the shell: a context manager that rolls back a transaction that is still open at the end."""

    def __init__(self, database: Database, output: Output) -> None:
        self._database = database
        self._output = output
        self._open: Transaction | None = None
        self._single: Transaction | None = None
        """The transaction of the running command, if the command runs in its own transaction."""
        self._savepoints: dict[str, Savepoint] = {}

    # Running lines

    def run_interactively(self, read_line: Callable[[str], str]) -> int:
        """Read and run lines until the user exits; after an error, print it and continue. Return the exit status."""
        message = f"{self._database.url}   help lists the commands, Ctrl-D exits"
        while True:
            try:
                if message:
                    self._output.note(message)
                    message = ""
                self.run_line(read_line(self.prompt))
            except KeyboardInterrupt:
                message = self._after_interrupt()
            except (EOFError, Exit):
                return 0
            except OmidError as error:
                self._output.error(f"{error} [{error.code}]")
                self._report_ended()

    def run_script(self, lines: Iterable[str]) -> int:
        """Run lines up to the first error, and return the exit status. A transaction that is still open at the end is
        an error."""
        number = 0
        try:
            for number, line in enumerate(lines, 1):  # noqa: B007
                self.run_line(line)
        except Exit:
            pass
        except KeyboardInterrupt:
            self._output.error(f"line {number}: {self._after_interrupt()}")
            return INTERRUPTED
        except OmidError as error:
            self._output.error(f"line {number}: {error} [{error.code}]")
            self._report_ended()
            return 1
        if self._open is not None:
            self._output.error(f"the script ended without commit, so transaction {self._open.start_ts} is rolled back")
            return 1
        return 0

    @property
    def prompt(self) -> str:
        if self._open is None:
            return "pyomid> "
        return f"pyomid {self._open.start_ts}{' rollback-only' if self._open.state is State.ROLLBACK_ONLY else ''}> "

    def words_to_complete(self, words: Sequence[str]) -> list[str]:
        """Return the words that may follow these words of a line."""
        if not words:
            return sorted(COMMANDS)
        command = COMMANDS.get(words[0])
        if command is None:
            return sorted(COMMANDS) if words[0] == "help" else []
        if len(words) == 1 and "TABLE" in command.usage:
            with suppress(OmidError):
                return [table.name for table in self._database.tables()]
        if words[0] == "scan":
            return ["start=", "stop=", "prefix=", "limit=", "reverse"]
        return []

    def run_line(self, line: str) -> None:
        words = words_of(line)
        if not words or words[0].text.startswith("#"):
            return
        name, *rest = words
        command = COMMANDS.get(name.text)
        if command is None:
            near = difflib.get_close_matches(name.text, COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; help lists the commands"
            raise Misuse(f"no command {name.text!r}{hint}")
        if not command.words_min <= len(rest) <= command.words_max:
            raise Misuse(f"usage: {name.text} {command.usage}".rstrip())
        command.run(self, rest)
        self._single = None
        self._forget_ended()

    # Commands

    def begin(self, words: Sequence[Word]) -> None:
        places = [pair_of(word)[1].text for word in words if word.text.startswith("at=")]
        options = {word.text for word in words if not word.text.startswith("at=")}
        if unknown := options - {"read-only", "lease"}:
            raise Misuse(f"unknown option {min(unknown)!r}: begin accepts read-only, lease and at=")
        if len(places) > 1:
            raise Misuse(f"begin accepts one at=, not {len(places)}")
        if self._open is not None:
            raise Misuse(f"transaction {self._open.start_ts} is already open: commit it or roll it back first")
        at = places[0] if places else None
        self._open = self._database.begin(read_only="read-only" in options, lease="lease" in options, at=at)
        self._output.note(f"began {self._open.start_ts}")

    def commit(self, _: Sequence[Word]) -> None:
        transaction = self._open_transaction()
        with self._delayed_interrupt():
            transaction.commit()
            self._output.note(_committed(transaction))

    def rollback(self, words: Sequence[Word]) -> None:
        if words:
            self._savepoint(words).rollback()
            self._output.note(f"rolled back to {words[-1].text}")
            return
        transaction = self._open_transaction()
        transaction.rollback()
        self._output.note(f"rolled back {transaction.start_ts}")

    def savepoint(self, words: Sequence[Word]) -> None:
        self._savepoints[words[0].text] = self._open_transaction().savepoint()

    def get(self, words: Sequence[Word]) -> None:
        with self._reading() as transaction:
            rows = rows_of(transaction, words[0].text)
            key, columns = _key_and_rest(words[0].text, rows, words[1:])
            found = rows.get(key, columns)
            self._show(rows, [] if found is None else [found])
        if found is None:
            self._output.note("no such row")

    def scan(self, words: Sequence[Word]) -> None:
        bounds: dict[str, Word] = {}
        limit: int | None = None
        reverse = False
        for word in words[1:]:
            if word.text == "reverse":
                reverse = True
                continue
            name, value = pair_of(word, SCAN_OPTIONS)
            if name == "limit":
                limit = _limit(value.text)
            elif name in ("start", "stop", "prefix"):
                bounds[name] = value
            else:
                raise Misuse(f"{word.text!r} is not {SCAN_OPTIONS}")
        count = 0
        with self._reading() as transaction:
            rows = rows_of(transaction, words[0].text)
            records = rows.scan(bounds, limit, reverse=reverse)
            while chunk := list(islice(records, ROWS_AT_ONCE)):
                self._show(rows, chunk)
                count += len(chunk)
        self._output.note(f"{count} row{'' if count == 1 else 's'}")

    def put(self, words: Sequence[Word]) -> None:
        def write(rows: Rows) -> None:
            key, pairs = _key_and_rest(words[0].text, rows, words[1:])
            rows.put(key, pairs)

        self._write(words[0].text, write)

    def delete(self, words: Sequence[Word]) -> None:
        def write(rows: Rows) -> None:
            key, columns = _key_and_rest(words[0].text, rows, words[1:])
            rows.delete(key, columns)

        self._write(words[0].text, write)

    def tables(self, _: Sequence[Word]) -> None:
        infos = self._database.tables()
        self._output.table(
            ("table", "families", "conflict level", "row key"),
            [(info.name, families_text(info), level_text(info), ", ".join(_row_key(info))) for info in infos],
        )

    def describe(self, words: Sequence[Word]) -> None:
        info = self._database.table_info(words[0].text)
        row_key = ", ".join(_row_key(info)) or "bytes"
        self._output.note(f"families {families_text(info)}   conflict level {level_text(info)}   row key {row_key}")
        if info.schema is not None:
            places = [(each.name, each.spark_type, each.column) for each in info.schema.columns]
            self._output.table(
                ("column", "type", "stored in"), [(name, kind, _stored_in(column)) for name, kind, column in places]
            )

    def help(self, words: Sequence[Word]) -> None:
        if words and words[0].text not in COMMANDS:
            raise Misuse(f"unknown command {words[0].text!r}; `help` lists the commands")
        names = [words[0].text] if words else list(COMMANDS)
        for name in names:
            command = COMMANDS[name]
            self._output.line(f"{f'{name} {command.usage}':<58} {command.text}".rstrip())
        if not words:
            self._output.line(VALUES)

    def exit(self, _: Sequence[Word]) -> None:
        raise Exit

    # Transactions

    def _open_transaction(self) -> Transaction:
        if self._open is None:
            raise Misuse("no transaction is open: begin one")
        return self._open

    @contextmanager
    def _reading(self) -> Iterator[Transaction]:
        """Yield the open transaction, or a snapshot for this command."""
        if self._open is not None:
            yield self._open
            return
        with self._database.snapshot() as snapshot:
            yield snapshot

    def _write(self, table: str, write: Callable[[Rows], None]) -> None:
        if self._open is not None:
            write(rows_of(self._open, table))
            return

        def alone(transaction: Transaction) -> Transaction:
            self._single = transaction
            write(rows_of(transaction, table))
            return transaction

        with self._delayed_interrupt():
            self._output.note(_committed(self._database.run(alone)))

    @contextmanager
    def _delayed_interrupt(self) -> Iterator[None]:
        """Delay the first Ctrl-C until the block ends; a second Ctrl-C interrupts the block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        asked = False

        def first(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            asked = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.write(2, b"waiting for the reply; after another Ctrl-C the outcome is unknown\n")

        before = signal.signal(signal.SIGINT, first)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        if asked and not self._output.is_verbose:
            raise KeyboardInterrupt  # to stop the script

    def _savepoint(self, words: Sequence[Word]) -> Savepoint:
        if len(words) != 2 or words[0].text != "to":
            raise Misuse("usage: rollback [to SAVEPOINT]")
        self._open_transaction()
        found = self._savepoints.get(words[1].text)
        if found is None:
            known = f"; known: {', '.join(self._savepoints)}" if self._savepoints else ""
            raise Misuse(f"no savepoint {words[1].text!r}{known}")
        return found

    def _forget_ended(self) -> None:
        if self._open is not None and self._open.state in ENDED:
            self._open = None
        if self._open is None:
            self._savepoints.clear()

    def _report_ended(self) -> None:
        """After an error, report that the transaction is now rollback-only, or forget it if it has ended."""
        self._single = None
        if self._open is not None and self._open.state is State.ROLLBACK_ONLY:
            self._output.error(f"transaction {self._open.start_ts} can only be rolled back")
        self._forget_ended()

    def _after_interrupt(self) -> str:
        transaction = self._open or self._single
        self._single = None
        if transaction is None:
            return "interrupted; no transaction is open"
        what = _INTERRUPTED[transaction.state].format(start=transaction.start_ts, commit=transaction.commit_ts)
        self._forget_ended()
        return f"interrupted; {what}"

    def _show(self, rows: Rows, records: Sequence[Record]) -> None:
        if self._output.as_json:
            for record in records:
                self._output.json(record)
        elif rows.is_typed and records:
            shown = [rows.shown(record) for record in records]
            self._output.table([name for name, _ in shown[0]], [[text for _, text in each] for each in shown])
        else:
            for record in records:
                (_, key), *cells = rows.shown(record)
                self._output.line("   ".join([key, *(f"{name}={text}" for name, text in cells)]))

    def close(self) -> None:
        transaction, self._open = self._open, None
        if transaction is not None and transaction._core.can_roll_back:
            transaction.rollback()
            self._output.note(f"rolled back the open transaction {transaction.start_ts}")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


ROWS_AT_ONCE: Final = 100
"""Number of rows of a scan that are read, aligned and shown together."""

_INTERRUPTED: Final = {
    State.ACTIVE: "transaction {start} stays open: commit or rollback",
    State.ROLLBACK_ONLY: "transaction {start} can only be rolled back; nothing of it is committed",
    State.COMMITTING: "transaction {start} may have committed: check what it wrote",
    State.UNKNOWN: "transaction {start} may have committed: check what it wrote",
    State.COMMITTED: "transaction {start} committed at {commit}",
    State.ROLLED_BACK: "transaction {start} is rolled back; nothing of it is committed",
}


@dataclass(frozen=True, slots=True)
class Command:
    run: Callable[[Session, Sequence[Word]], None]
    usage: str
    text: str
    words_min: int = 0
    words_max: int = 1_000


COMMANDS: Final[dict[str, Command]] = {
    "get": Command(Session.get, "TABLE KEY [COLUMN …]", "show a row, or columns of it", 2),
    "put": Command(Session.put, "TABLE KEY COLUMN=VALUE …", "set columns of a row; null removes a value", 2),
    "delete": Command(Session.delete, "TABLE KEY [COLUMN …]", "delete a row, or columns of it", 2),
    "scan": Command(
        Session.scan, "TABLE [prefix=] [start=] [stop=] [limit=] [reverse]", "show rows in key order", 1, 6
    ),
    "begin": Command(Session.begin, "[read-only] [lease] [at=]", "begin a transaction, or a read of the past", 0, 3),
    "commit": Command(Session.commit, "", "commit the transaction durably", 0, 0),
    "rollback": Command(Session.rollback, "[to SAVEPOINT]", "roll back, or undo writes since a savepoint", 0, 2),
    "savepoint": Command(Session.savepoint, "NAME", "mark the current state of the transaction's writes", 1, 1),
    "tables": Command(Session.tables, "", "list all tables", 0, 0),
    "describe": Command(Session.describe, "TABLE", "show a table's columns and their types", 1, 1),
    "help": Command(Session.help, "[COMMAND]", "show this list", 0, 1),
    "exit": Command(Session.exit, "", "exit the shell; an open transaction is rolled back", 0, 0),
}

VALUES: Final = r"""
A key of several columns is several words: get orders 2026-02-28 17. A value's form depends on the column's type: 12.50,
true, 2026-02-28, JSON for arrays, maps and structs. A table without a schema has columns family:qualifier and holds
bytes. Quotes protect spaces; \n \t \\ \xNN write what cannot be typed. null is no value, "null" is text."""


def _key_and_rest(table: str, rows: Rows, words: Sequence[Word]) -> tuple[Sequence[Word], Sequence[Word]]:
    if len(words) < rows.key_parts:
        raise Misuse(f"a key of {table} has {rows.key_parts} parts; `describe {table}` lists them")
    return words[: rows.key_parts], words[rows.key_parts :]


def _limit(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise Misuse(f"limit={text!r} is not a number of rows")
    return int(text)


def _committed(transaction: Transaction) -> str:
    if transaction.commit_ts is None:
        return f"committed {transaction.start_ts}, nothing was written"
    return f"committed {transaction.start_ts} at {dated(transaction.commit_ts)}"


def _row_key(info: TableInfo) -> list[str]:
    return [] if info.schema is None else [f"{p.name}{' desc' if p.descending else ''}" for p in info.schema.row_key]


def _stored_in(column: Column | None) -> str:
    return "row key" if column is None else f"{column.family.decode()}:{column.qualifier.decode()}"
