"""Performs SQL statements, in a transaction (`SparkTransaction.sql`) or alone (`SparkDatabase.sql`).

    grammar      parses a statement: every token is consumed by a rule, or the statement is refused
    Spark        parses the statement too, so that no statement passes that Spark would refuse
    this module  calls the transaction's builders with the texts of expressions, which Spark parses and resolves

A query becomes the body of a WITH clause that defines its tables. Only a read of the past is rewritten:

    SELECT item FROM stock                    →    WITH `stock` AS (SELECT * FROM {omid_0}) (SELECT item FROM stock)
    SELECT item FROM stock VERSION AS OF 7    →    SELECT item FROM ({omid_0} AS `stock`)
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, MapType, StructType, _parse_datatype_json_string

from pyomid.database.open_database import checked_at
from pyomid.database.table_admin import drop_table, user_tables
from pyomid.database.validation import near_table
from pyomid.errors import Misuse, MisuseType, UnknownTable
from pyomid.rows.schema import column_named, near, schema_of, select_columns
from pyomid.spark.expressions import fitted_frame, moment_of, quoted, refusals, unknown_table
from pyomid.spark.frame_schema import WriteOptions, fields_of, prepared_table, table_or_none
from pyomid.spark.local_frames import rows_given
from pyomid.spark.merge import Merge, WhenMatched
from pyomid.spark.sessions import any_case, is_connect
from pyomid.spark.sql.grammar import (
    CreateTable,
    Delete,
    DescribeTable,
    DropTable,
    Insert,
    MergeInto,
    Other,
    Past,
    Query,
    ShowTables,
    Update,
    When,
    parsed,
    past_of,
)
from pyomid.spark.sql.literals import Edit, edited, filled
from pyomid.spark.sql.tokens import Kind, Part, Token
from pyomid.types import RowKeyPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from pyomid.spark.loads import Reads
    from pyomid.spark.transactions import SparkTransaction

_SUPPORTED: Final = (
    "SELECT, INSERT INTO and OVERWRITE, UPDATE, DELETE, MERGE INTO, CREATE and DROP TABLE, DESCRIBE and SHOW TABLES"
)

_BEFORE_TABLE: Final = ("FROM", "JOIN", "LATERAL", "TABLE", ",", "(")
"""Words and symbols that may stand before the name of a table in a query."""

_AFTER_WHERE: Final = (
    "GROUP", "HAVING", "WINDOW", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "LATERAL", "UNION",
    "EXCEPT", "MINUS", "INTERSECT", "SELECT",
)  # fmt: skip
_BEFORE_PARENTHESIS: Final = ("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "CAST", "DECIMAL")
"""The only words before a parenthesis in a condition without functions."""


class Statement:
    """One parsed statement with its parameters."""

    def __init__(
        self, session: SparkSession, text: str, args: Mapping[str, Any] | None, frames: Mapping[str, Any]
    ) -> None:
        _check_given(text, args)
        line = " ".join(text.split())
        self._what = f"SQL {line if len(line) <= 80 else line[:77] + '…'}"
        self._session = session
        self._text = filled(text, args or {}, self._what)
        self._frames = frames
        self._parsed, self._part = parsed(self._text, self._what)
        self._check_frames()
        self._check_quotes()
        if not isinstance(self._parsed, Query):  # Spark parses a query when its frame is made
            self._check_syntax()
        self._check_names()
        if isinstance(self._parsed, Other):
            raise Misuse(f"{self._what} is not supported; the supported statements are {_SUPPORTED}")

    def _check_frames(self) -> None:
        used = {token.name for token in self._part.tokens if token.kind is Kind.FRAME}
        for name in sorted(used):
            if name not in self._frames:
                known = near(name, self._frames)
                raise Misuse(f"the SQL statement names a frame {{{name}}}, but no such frame was given{known}")
        unused = sorted(set(self._frames) - used)
        if unused:
            raise Misuse(f"a frame {unused[0]!r} was given, but the SQL statement has no {{{unused[0]}}}")

    def _check_quotes(self) -> None:
        """Raise `Misuse` if the session's settings make a text in double quotes a name."""
        token = next((each for each in self._part.tokens if each.text.startswith('"')), None)
        settings = ("spark.sql.ansi.enabled", "spark.sql.ansi.doubleQuotedIdentifiers")
        if token is not None and all(self._session.conf.get(name) == "true" for name in settings):
            raise Misuse(
                f"{self._what}: the setting {settings[1]} makes {token.text} a name, which pyomid does not support; "
                "write names in backquotes and strings in single quotes"
            )

    def _check_names(self) -> None:
        """Raise `Misuse` if an expression computes the name of a table or a column (IDENTIFIER)."""
        if any(self._part.has(number, "IDENTIFIER (") for number in range(len(self._part.tokens))):
            raise Misuse(f"{self._what}: IDENTIFIER is not supported; write the name in the statement")

    def _check_syntax(self) -> None:
        """Raise `Misuse` if Spark's parser refuses the statement. EXPLAIN parses it and performs nothing."""
        frames = (token for token in self._part.tokens if token.kind is Kind.FRAME)
        edits = [Edit(token.start, token.end, quoted(token.name)) for token in frames]
        text = edited(self._text, edits, self._part.start, self._part.end)
        with refusals(f"{self._what} cannot be parsed"):
            if is_connect(self._session):
                self._session.sql(f"EXPLAIN {text}")
            else:
                session: Any = self._session
                session._jsparkSession.sessionState().sqlParser().parsePlan(text)

    @property
    def is_change(self) -> bool:
        """Whether the statement needs a transaction."""
        return isinstance(self._parsed, Insert | Update | Delete | MergeInto | CreateTable | DropTable)

    def perform(self, tx: SparkTransaction) -> Any:
        """Perform the statement in the transaction, and return the result of the transaction's method."""
        match self._parsed:
            case Insert() as insert:
                return self._insert(tx, insert)
            case Update(table, name, values, where):
                return tx.update_named(self._known(tx, table), name, where, values)
            case Delete(table, name, where):
                return tx.delete_named(self._known(tx, table), name, where)
            case MergeInto() as merge:
                return self._merge(tx, merge)
            case CreateTable() as create:
                return self._create(tx, create)
            case DropTable(table, if_present):
                return self._drop(tx, self._known(tx, table), if_present=if_present)
        return self.answer(tx)

    def answer(self, reads: Reads) -> DataFrame:
        """Return the rows of a statement that changes nothing."""
        match self._parsed:
            case Query() as query:
                return self._frame(reads, query, alone=True)
            case DescribeTable(table):
                return self._describe(reads, self._known(reads, table))
            case ShowTables(pattern):
                return self._show(reads, pattern)
        raise AssertionError(self._parsed)

    # Queries

    def _frame(self, reads: Reads, query: Query, *, alone: bool = False) -> DataFrame:
        """Return the lazy result of a query. `alone`: raise `Misuse` if it names no table of the database and no
        frame."""
        known, mentions = self._tables(reads), [token for part in query.parts for token in self._mentions(part)]
        tables = {token: table for token in mentions if (table := self._named(token.name, known)) is not None}
        pasts = {
            token: past
            for part in query.parts
            for number, token in enumerate(part.tokens)
            if token in tables and (past := past_of(part, number, self._what)) is not None
        }
        frames = [token for part in query.parts for token in part.tokens if token.kind is Kind.FRAME]
        named, edits, definitions, places = dict[str, Any](), list[Edit](), list[str](), dict[str, str]()
        for token, past in pasts.items():
            table = tables.pop(token)
            edits.append(Edit(token.start, past.end, f"({{omid_{len(named)}}} AS {_escaped(quoted(token.name))})"))
            named[f"omid_{len(named)}"] = reads.read(table, at=self._at(past))
        for table in dict.fromkeys(tables.values()):
            where = _where_alone(query, [token for token in tables if tables[token] == table])
            definitions.append(f"{_escaped(quoted(table))} AS (SELECT * FROM {{omid_{len(named)}}})")
            named[f"omid_{len(named)}"] = reads.read_bounded(table, where)
        for token in frames:
            if token.name not in places:
                places[token.name] = f"omid_{len(named)}"
                named[places[token.name]] = _spark_frame(reads.session, self._frames[token.name], token.name)
            edits.append(Edit(token.start, token.end, self._placed(query, token, f"{{{places[token.name]}}}")))

        def text_of(part: Part) -> str:
            return edited(self._text, edits, part.start, part.end, escape=bool(named))

        body = text_of(query.part)
        if len(query.part.tokens) == 1:
            body = f"SELECT * FROM {body}"
        if query.ctes is not None:
            body = f"{text_of(query.ctes)} (\n{body}\n)"
        with_tables = f"WITH {', '.join(definitions)} " if definitions else ""
        found = self._resolved(f"{with_tables}(\n{body}\n)", named, known)
        if alone and not named:
            raise Misuse(f"{self._what} names no table of the database; use spark.sql instead")
        return found

    def _resolved(self, text: str, named: Mapping[str, Any], known: Sequence[str]) -> DataFrame:
        """Return Spark's frame for the text of a query. Raises `UnknownTable` if it names a table that does not
        exist."""
        try:
            with refusals(self._what):
                return self._session.sql(text, **named)
        except Misuse as error:
            name = unknown_table(error.__cause__)
            if name is None:
                raise
            hint = near_table(name, known) or "; SHOW TABLES lists its tables"
            raise UnknownTable(
                f"{self._what}: there is no table {name!r} in the database{hint}", table=name
            ) from error.__cause__

    def _mentions(self, part: Part) -> Iterator[Token]:
        """Yield the names that may be tables."""
        for number, token in enumerate(part.tokens):
            if token.is_name and _is_place(part, number) and not any(part.has(number + 1, sign) for sign in ".("):
                yield token

    def _at(self, past: Past) -> int | datetime:
        """Return the value of a clause VERSION or TIMESTAMP AS OF, which Spark computes, in the session's zone."""
        kind = "unix_micros(CAST(({}) AS TIMESTAMP_LTZ))" if past.is_time else "CAST(({}) AS STRING)"
        with refusals(f"{self._what}: {past.clause} {past.value}"):
            (row,) = self._session.sql("SELECT " + kind.format(past.value)).collect()
        at = moment_of(row[0]) if past.is_time else row[0]
        if at is None:
            raise Misuse(f"{self._what}: {past.clause} {past.value} is NULL; give a value that names a snapshot")
        return checked_at(at, past.clause)

    def _placed(self, query: Query, token: Token, parameter: str) -> str:
        """Return the text that takes the place of a frame in a query."""
        part = next(part for part in query.parts if token in part.tokens)
        number = part.tokens.index(token)
        if not _is_place(part, number):
            raise Misuse(f"{self._what}: the frame {token.text} is allowed only in place of a table name")
        return parameter if part.has(number - 1, "TABLE") else f"({parameter} AS {quoted(token.name)})"

    # Changes

    def _insert(self, tx: SparkTransaction, insert: Insert) -> Any:
        table = self._known(tx, insert.table)
        info = tx.writable(table)
        frame = self._frame(tx, insert.query)
        if not insert.by_name:
            names = [column.name for column in schema_of(info).columns]
            if insert.columns is not None:
                names = list(select_columns(table, schema_of(info), insert.columns, any_case=any_case(tx.session)))
            if len(frame.columns) != len(names):
                raise Misuse(
                    f"{self._what} gives {len(frame.columns)} values for {len(names)} columns ({', '.join(names)}); "
                    f"name the columns: INSERT INTO {table} (…) …"
                )
            frame = frame.toDF(*names)
        mode = "overwrite" if insert.overwrite else "append"
        # The frame reads the statement's tables at this transaction's snapshot, so it is not a stale read.
        # A null keeps the stored value, like a column that the INSERT does not name: a view's INSERT cannot distinguish
        # the two.
        return tx.write(fitted_frame(frame, info, self._what), table, mode=mode, nulls="keep")

    def _merge(self, tx: SparkTransaction, statement: MergeInto) -> Any:
        table = self._known(tx, statement.table)
        source = rows_given(tx.session, self._source(tx, statement), f"the source of the merge into {table!r}")
        merge = Merge(tx, source, table, statement.on, None, "refuse", (statement.source_name, statement.name))
        for when in statement.whens:
            merge = _with_clause(merge, when)
        return merge.merge()

    def _source(self, tx: SparkTransaction, statement: MergeInto) -> Any:
        source = statement.source
        if isinstance(source, Query):
            return self._frame(tx, source)
        return self._frames[source.name]

    # Tables

    def _create(self, tx: SparkTransaction, create: CreateTable) -> None:
        table, conn = self._known(tx, create.table), tx.connection
        if table_or_none(conn, table) is not None:
            if create.if_missing:
                return
            raise Misuse(
                f"{self._what}: table {table!r} already exists; add IF NOT EXISTS to keep the table", table=table
            )
        text = ", ".join(f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in create.types.items())
        with refusals(self._what):
            struct = tx.session.sql(f"SELECT {text}").schema
        for field in struct.fields:
            _check_kept(field.dataType, f"{self._what}: column {field.name!r}")
        prepared_table(conn, table, fields_of(struct), WriteOptions(row_key=tuple(map(RowKeyPart, create.key))), None)

    def _drop(self, tx: SparkTransaction, table: str, *, if_present: bool) -> None:
        if table_or_none(tx.connection, table) is None and if_present:
            return
        tx.connection.table(table)
        drop_table(tx.connection.deployment, table)

    def _describe(self, reads: Reads, table: str) -> DataFrame:
        schema = schema_of(reads.connection.table(table))
        places = {
            part.name: f"row key {number}{' desc' if part.descending else ''}"
            for number, part in enumerate(schema.row_key, 1)
        }
        rows = [(each.name, _type_text(each.spark_type), places.get(each.name)) for each in schema.columns]
        return reads.session.createDataFrame(rows, "col_name string, data_type string, comment string")

    def _show(self, reads: Reads, pattern: str) -> DataFrame:
        patterns = [each.strip().lower() for each in pattern.split("|")]
        names = [name for name in self._tables(reads) if any(fnmatch.fnmatchcase(name.lower(), p) for p in patterns)]
        rows = [("", name, False) for name in names]
        return reads.session.createDataFrame(rows, "namespace string, tableName string, isTemporary boolean")

    def _tables(self, reads: Reads) -> list[str]:
        return [info.name for info in user_tables(reads.connection.deployment.catalog)]

    def _named(self, name: str, known: Sequence[str]) -> str | None:
        """Return the name of the table that `name` means under the session's rule for case; None if there is none."""
        return column_named(name, known, f"{self._what}: the database", any_case=any_case(self._session))

    def _known(self, reads: Reads, name: str) -> str:
        """Return the name of the table that `name` means, or the name unchanged if there is no such table."""
        return self._named(name, self._tables(reads)) or name


def _check_given(text: Any, args: Any) -> None:
    if not isinstance(text, str):
        raise MisuseType(f"a SQL statement must be a string, not {text!r}")
    if args is not None and not isinstance(args, Mapping):
        raise MisuseType(f"args must be a mapping from names to values, not {args!r}")
    if (other := next((name for name in args or () if not isinstance(name, str)), None)) is not None:
        raise MisuseType(
            f"args has the key {other!r}, which is not a string; each key must be the name of a parameter :name"
        )
    for each in (text, *(args or {}), *(args or {}).values()):
        if isinstance(each, str) and any("\ud800" <= character <= "\udfff" for character in each):
            raise Misuse(
                f"{each!r}, in the SQL text or args, contains a lone surrogate, which is not valid Unicode", value=each
            )


def _is_place(part: Part, number: int) -> bool:
    """Whether a table may be named at this token."""
    return len(part.tokens) == 1 or any(part.has(number - 1, word) for word in _BEFORE_TABLE)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _where_alone(query: Query, mentions: Sequence[Token]) -> str | None:
    """Return the text of the WHERE clause if it may bound the keys to read; else None. It may if the query reads this
    table once and nothing else, and the clause calls no function and qualifies no column."""
    part = query.part
    selects = [number for number in range(len(part.tokens)) if part.has(number, "SELECT")]
    if len(mentions) != 1 or selects != [0] or query.ctes is not None:
        return None
    top = list(part.top())
    begin = next((number for number in top if part.has(number, "FROM")), -2) + 1
    has_more = "$" in part.text  # Spark puts the value of a variable there, which may read the table too
    if part.tokens[begin] != mentions[0] or has_more or any(token.text == "|" for token in part.tokens):
        return None
    begin += 1
    begin += part.has(begin, "AS")
    begin += not part.has(begin, "WHERE")
    if not part.has(begin, "WHERE"):
        return None
    end = next((n for n in top if n > begin and any(part.has(n, word) for word in _AFTER_WHERE)), len(part.tokens))
    where = Part(part.whole, part.tokens[begin + 1 : end])
    for number, token in enumerate(where.tokens):
        is_call = token.is_name and where.has(number + 1, "(") and not any(map(token.is_, _BEFORE_PARENTHESIS))
        if is_call or token.text in (".", "["):
            return None
    return where.text or None


def _with_clause(merge: Merge, when: When) -> Merge:
    """Return the merge with one more clause."""
    if when.action == "INSERT":
        inserting = merge.whenNotMatched(when.condition)
        return inserting.insertAll() if when.values is None else inserting.insert(when.values)
    changing = merge.whenMatched(when.condition) if when.matched else merge.whenNotMatchedBySource(when.condition)
    if when.action == "DELETE":
        return changing.delete()
    if when.values is not None:
        return changing.update(when.values)
    if isinstance(changing, WhenMatched):
        return changing.updateAll()
    raise AssertionError(when)


def _spark_frame(spark: SparkSession, given: Any, name: str) -> DataFrame:
    rows = rows_given(spark, given, f"the frame {{{name}}}")
    return rows if hasattr(rows, "createOrReplaceTempView") else spark.createDataFrame(rows)


def _check_kept(kind: DataType, what: str) -> None:
    """Raise `Misuse` if a field inside the type has NOT NULL or COMMENT, which no column keeps."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            if not field.nullable:
                raise Misuse(
                    f"{what}: NOT NULL of field {field.name!r} is not supported, because any field may be null"
                )
            if "comment" in field.metadata:
                raise Misuse(f"{what}: COMMENT of field {field.name!r} is not supported; omit it")
            _check_kept(field.dataType, what)
    elif isinstance(kind, ArrayType):
        _check_kept(kind.elementType, what)
    elif isinstance(kind, MapType):
        _check_kept(kind.keyType, what)
        _check_kept(kind.valueType, what)


def _type_text(spark_type: str) -> str:
    """Return the text that Spark's `simpleString` has for a stored type."""
    text = spark_type if spark_type.startswith("{") else json.dumps(spark_type)
    return str(_parse_datatype_json_string(text).simpleString())
