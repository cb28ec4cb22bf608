"""SQL statements, in a transaction (`SparkTransaction.sql`) or alone (`SparkDatabase.sql`).

sqlglot parses a statement to find its kind, its clauses and the tables that it names. It never rewrites queries or
expressions: Spark receives the caller's own text, in which pyomid replaces only tables, frames and aliases. A clause
that pyomid does not support raises `Misuse`, which names the clause.

sqlglot reads other dialects too, so it accepts what Spark refuses, and takes for a comment what Spark does not. So
Spark's own parser reads each change too, and what it refuses is refused (`_check_grammar`).
"""

from __future__ import annotations

import fnmatch
import json
import logging
import numbers
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import ParseException, PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import _parse_datatype_json_string

from pyomid.client.table_admin import drop_table, user_tables
from pyomid.errors import Misuse, MisuseType
from pyomid.row_codec.schema import near, row_key_parts, schema_of, select_columns
from pyomid.spark.expressions import fitted, quoted, reason
from pyomid.spark.frame_schema import WriteOptions, fields_of, prepared_table, struct_of, table_or_none
from pyomid.spark.local_frames import rows_given
from pyomid.spark.merge import Merge, WhenMatched
from pyomid.spark.sessions import any_case

try:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.tokenizer_core import Token, TokenType
except ModuleNotFoundError:
    raise Misuse("SQL needs the package sqlglot, which is not installed: pip install 'pyomid[spark]'") from None

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyomid.spark.loads import Reads
    from pyomid.spark.transactions import SparkTransaction
    from pyomid.types import TableInfo

_CLAUSES: Final = {
    "with_": "WITH",
    "from_": "FROM",
    "joins": "JOIN",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "returning": "RETURNING",
    "partition": "PARTITION",
    "partitions": "PARTITION",
    "where": "REPLACE WHERE",
    "exists": "IF EXISTS",
    "replace": "OR REPLACE",
    "expression": "AS SELECT",
    "properties": "USING, LIKE, TEMPORARY, COMMENT, PARTITIONED BY or TBLPROPERTIES",
    "version": "VERSION AS OF or TIMESTAMP AS OF",
    "sample": "TABLESAMPLE",
    "pivots": "PIVOT",
    "cascade": "CASCADE",
    "constraints": "a constraint",
    "style": "EXTENDED",
    "db": "a catalog or schema before the table's name",
    "catalog": "a catalog or schema before the table's name",
}
"""sqlglot's names of clauses, as users write them."""

_PUSHED: Final = (
    exp.And, exp.Or, exp.Not, exp.Paren, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.In,
    exp.Is, exp.Null, exp.Boolean, exp.Literal, exp.Neg, exp.Cast, exp.DataType, exp.Column, exp.Identifier,
    exp.HexString, exp.Like,
)  # fmt: skip
"""The nodes of which a condition that bounds the keys may consist: deterministic ones."""

_SUPPORTED: Final = (
    "SELECT, INSERT INTO and OVERWRITE, UPDATE, DELETE, MERGE INTO, CREATE and DROP TABLE, DESCRIBE and SHOW TABLES"
)


logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns about each statement that it does not parse


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of the characters from `start` up to `end`."""

    start: int
    end: int
    text: str


class Statement:
    """One parsed statement with its parameters."""

    def __init__(self, text: str, args: Mapping[str, Any] | None, frames: Mapping[str, Any]) -> None:
        if not isinstance(text, str):
            raise MisuseType(f"a SQL statement is a string, not {text!r}")
        if args is not None and not isinstance(args, Mapping):
            raise MisuseType(f"args is a mapping from names to values, not {args!r}")
        self._given = text
        filled = _without_semicolon(_filled(text, args or {}))
        self._text, self._frames_at = _with_frames(filled, frames)
        self._frames = frames
        self.root = _parsed(self._text, text)
        self._tokens = _tokens(self._text)
        self._check_comments()
        self._check_names()

    def _check_names(self) -> None:
        """`Misuse` if a string stands for a name, or a frame for anything but a table."""
        strings = {token.start for token in self._tokens if token.token_type == TokenType.STRING}
        for name in self.root.find_all(exp.Identifier):
            if name.meta.get("start") in strings and isinstance(name.parent, exp.Table | exp.Column | exp.Schema):
                raise Misuse(
                    f"{self._what()}: the string {name.name!r} is not a name: write a name in the statement, in "
                    "backquotes if it is quoted"
                )
        tables = {table.this.meta.get("start") for table in self.root.find_all(exp.Table) if table.this}
        for place, frame in self._frames_at.items():
            if place not in tables:
                raise Misuse(f"{self._what()}: the frame {{{frame}}} is not in the place of a table")

    def _check_comments(self) -> None:
        """`Misuse` for a comment of another dialect, or one that Spark and sqlglot end at different places."""
        if isinstance(self.root, exp.Command):  # sqlglot does not tokenize it: `_show` reads its text
            return
        at, text = 0, _readable(self._text)
        for start, end in [*((token.start, token.end + 1) for token in self._tokens), (len(self._text),) * 2]:
            between = text[at:start]
            if between and _COMMENTS.fullmatch(between) is None:
                raise Misuse(f"{self._what()}: {between.strip()!r} is not a comment to Spark")
            at = end

    def _check_grammar(self, session: SparkSession) -> None:
        """`Misuse` with Spark's message if its parser does not accept the statement. `UPDATE *` is pyomid's."""
        stars = (
            Edit(token.start, token.start, "SET ")
            for before, token in zip(self._tokens, self._tokens[1:], strict=False)
            if token.token_type == TokenType.STAR and self._text[before.start : before.end + 1].upper() == "UPDATE"
        )
        try:
            _parse_with_spark(session, _edited(self._text, stars))
        except ParseException as error:
            raise Misuse(f"{self._what()}: {reason(error)}") from error

    # Queries

    def _query(self, reads: Reads) -> DataFrame:
        """Return the lazy result of a query. `Misuse` if it names no table of the database and no frame."""
        known = self._known(reads)
        if not self._frames_at and not any(table.name in known for table in _tables(self.root)):
            raise Misuse(f"{self._what()} names no table of the database{_near_one(self.root, known)}: use spark.sql")
        return self._frame(reads, self.root, 0, len(self._text))

    def _frame(self, reads: Reads, query: exp.Expr, start: int, end: int) -> DataFrame:
        """Return the lazy result of the query between these two positions of the text."""
        self._check_words(start, end)
        named, edits, given = dict[str, Any](), list[Edit](), dict[str, str]()
        known, where = self._known(reads), self._pushed(query)
        for table in _tables(query, self._frames_at):
            place = table.this.meta
            at = place["start"]
            parameter = f"omid_{len(named)}"
            if at in self._frames_at:
                name = self._frames_at[at]
                if name not in given:
                    given[name] = parameter
                    named[parameter] = _spark_frame(reads.session, self._frames[name], name)
                parameter = given[name]
            elif table.args.get("db"):
                continue
            elif table.name not in known:
                self._check_case(table.name, known)
                continue
            else:
                _only(table, "a query", "this", "alias", "sample", "joins", "laterals", "pivots")
                named[parameter] = reads.read(table.name, where=where)
            alias = "" if table.args.get("alias") else f" AS {quoted(table.name)}"
            after = self._after_sample(table) if alias and table.args.get("sample") else place["end"] + 1
            edits.append(Edit(at, place["end"] + 1, f"{{{parameter}}}{alias if after == place['end'] + 1 else ''}"))
            if after != place["end"] + 1:
                edits.append(Edit(after, after, alias))
        text = self._slice(start, end, edits, escape=bool(named))
        try:
            return reads.session.sql(text, **named)
        except PySparkException as error:
            raise Misuse(f"{self._what()}: {reason(error)}") from error

    def _after_sample(self, table: exp.Expr) -> int:
        """Return the position after TABLESAMPLE (…) and REPEATABLE (…), where Spark takes a table's alias."""
        at = self._index_after(table)
        while at < len(self._tokens) and self._is_word(at, "TABLESAMPLE", "REPEATABLE"):
            at = self._index_after_parenthesis(at + 1)
        return self._tokens[at - 1].end + 1

    def _check_words(self, start: int, end: int) -> None:
        """`Misuse` if this part of the text names a table by TABLE or IDENTIFIER, where `_tables` does not find it."""
        for number, token in enumerate(self._tokens):
            if start <= token.start < end and self._is_word(number, "TABLE", "IDENTIFIER"):
                raise Misuse(
                    f"{self._what()}: {token.text} in a query is not supported: name the table in FROM; put a "
                    "column of this name in backquotes"
                )

    def _check_case(self, name: str, known: Iterable[str]) -> None:
        """`Misuse` if a table of the database differs from this name only by case."""
        other = next((each for each in known if each.lower() == name.lower() and each != name), None)
        if other is not None:
            raise Misuse(f"{self._what()}: there is no table {name!r}; did you mean {other!r}?", table=name)

    def _pushed(self, query: exp.Expr) -> str | None:
        """Return the text of a WHERE clause that may bound the keys to read: that of a query over one table, whose
        columns are not qualified. Else None."""

        if not isinstance(query, exp.Select) or query.args.get("joins") or query.args.get("with_"):
            return None
        source, where = query.args.get("from_"), query.args.get("where")
        if source is None or where is None or not isinstance(source.this, exp.Table):
            return None
        if any(name not in ("this", "alias") for name, value in source.this.args.items() if value):
            return None
        if query.args.get("laterals") or source.this.alias_column_names:
            return None
        if any(self._is_word(number, "|>") for number in range(len(self._tokens))):
            return None
        if not all(isinstance(node, _PUSHED) for node in where.this.walk()):
            return None
        if any(column.args.get("table") for column in where.find_all(exp.Column)):
            return None
        at = self._index_or_none("WHERE")
        if at is None:
            return None
        ends = ("GROUP", "GROUP BY", "HAVING", "ORDER BY", "ORDER", "LIMIT", "OFFSET", "WINDOW", "SORT BY", "UNION",
                "CLUSTER BY", "DISTRIBUTE BY", "QUALIFY", "LATERAL", "SELECT")  # fmt: skip
        stop = next((t.start for i, t in self._top(at + 1) if self._is_word(i, *ends)), len(self._text))
        text = self._text[self._tokens[at].end + 1 : stop].strip()
        return text if _is_text_of(text, where.this) else None

    # Changes

    @property
    def is_change(self) -> bool:
        """Whether the statement needs a transaction."""
        return isinstance(self.root, exp.Insert | exp.Update | exp.Delete | exp.Merge | exp.Create | exp.Drop)

    def perform(self, tx: SparkTransaction) -> Any:
        """Perform the statement in the transaction; return what its builder returns."""
        with _not_too_deep(self._what()):
            return self._performed(tx)

    def _performed(self, tx: SparkTransaction) -> Any:
        if self.is_change:
            self._check_grammar(tx.session)
        match self.root:
            case exp.Insert():
                return self._insert(tx)
            case exp.Update():
                return self._update(tx)
            case exp.Delete():
                return self._delete(tx)
            case exp.Merge():
                return self._merge(tx)
            case exp.Create():
                return self._create(tx)
            case exp.Drop():
                return self._drop(tx)
        return self.answer(tx)

    def answer(self, reads: Reads) -> DataFrame:
        """Return the rows of a statement that changes nothing."""
        with _not_too_deep(self._what()):
            return self._answered(reads)

    def _answered(self, reads: Reads) -> DataFrame:
        match self.root:
            case exp.Query():
                return self._query(reads)
            case exp.Describe():
                self._check_grammar(reads.session)
                return self._describe(reads)
            case exp.Command() if self.root.name.upper() == "SHOW":
                return self._show(reads)
        raise Misuse(f"{self._what()} is none of the statements that pyomid performs: {_SUPPORTED}")

    def _insert(self, tx: SparkTransaction) -> Any:
        root = self.root
        _only(root, "INSERT", "this", "expression", "overwrite", "by_name", "with_")
        target = root.this
        columns = None
        if isinstance(target, exp.Schema):
            columns = [each.name for each in target.expressions]
            target = target.this
        table = self._target(target, "INSERT")
        info = tx.writable(table)
        at = self._index_after(target)
        if columns is not None:
            after = self._index_after_parenthesis(at)
            if any(token.token_type in (TokenType.STRING, TokenType.DOT) for token in self._tokens[at:after]):
                raise Misuse(f"{self._what()}: a column of INSERT is a name, not a string and not a path")
            at = after
        if root.args.get("by_name"):
            at += 2
        start = self._tokens[at].start
        frame = self._inserted_frame(tx, root, start)
        if not root.args.get("by_name"):
            names = [column.name for column in schema_of(info).columns]
            if columns is not None:
                names = list(select_columns(table, schema_of(info), columns, any_case=any_case(tx.session)))
            if len(frame.columns) != len(names):
                raise Misuse(
                    f"{self._what()}: {len(frame.columns)} values for {len(names)} columns ({', '.join(names)}); name "
                    f"the columns: INSERT INTO {table} (…) …"
                )
            frame = frame.toDF(*names)
        mode = "overwrite" if root.args.get("overwrite") else "append"
        # The frame reads the statement's tables at this transaction's snapshot, so it is not a stale read.
        # A null keeps what is stored, as a column that is not named does: a view's INSERT cannot tell the two apart.
        return tx.write(_fitting(frame, info, self._what()), table, mode=mode, nulls="keep")

    def _inserted_frame(self, tx: SparkTransaction, root: exp.Expr, start: int) -> DataFrame:
        """Return the rows of INSERT's query, which begins at `start`; a WITH before INSERT belongs to it."""
        if root.args.get("with_") is None:
            return self._frame(tx, root.expression, start, len(self._text))
        if root.expression.args.get("with_") is not None:
            raise Misuse(f"{self._what()}: give one WITH, before INSERT or in its query")
        insert = self._tokens[self._index("INSERT")].start
        moved = Statement(self._text[:insert] + self._text[start:], None, {})
        moved._frames, moved._given = self._frames, self._given
        shift = start - insert
        moved._frames_at = {at if at < insert else at - shift: name for at, name in self._frames_at.items()}
        return moved._frame(tx, moved.root, 0, len(moved._text))

    def _update(self, tx: SparkTransaction) -> Any:
        _only(self.root, "UPDATE", "this", "expressions", "where")
        table = self._target(self.root.this, "UPDATE")
        self._refuse_subqueries("UPDATE")
        edits = self._renamed(dict.fromkeys(_names(self.root.this), ""))
        begin = self._index("SET")
        where = self._index_or_none("WHERE")
        end = where if where is not None else len(self._tokens)
        values = self._assignments(begin + 1, end, edits, self.root.expressions, _names(self.root.this))
        return tx.update(table, self._condition(where, edits), values)

    def _delete(self, tx: SparkTransaction) -> Any:
        _only(self.root, "DELETE", "this", "where")
        table = self._target(self.root.this, "DELETE")
        self._refuse_subqueries("DELETE")
        edits = self._renamed(dict.fromkeys(_names(self.root.this), ""))
        return tx.delete(table, where=self._condition(self._index_or_none("WHERE"), edits))

    def _merge(self, tx: SparkTransaction) -> Any:
        root = self.root
        _only(root, "MERGE", "this", "using", "on", "whens")
        _only(root.args["using"], "MERGE", "this", "alias")
        if root.args["using"].alias_column_names:
            raise Misuse(f"{self._what()}: column names after an alias are not supported: USING (SELECT … AS …)")
        table = self._target(root.this, "MERGE")
        using = root.args["using"]
        ours, theirs = _names(root.this), _names(using)
        if {name.lower() for name in ours} & {name.lower() for name in theirs}:
            raise Misuse(f"{self._what()}: source and target need different names: give aliases by AS")
        self._check_whens(root.args["whens"], [*ours, *theirs])
        edits = self._renamed({**dict.fromkeys(ours, "target"), **dict.fromkeys(theirs, "source")})
        merge = tx.merge(self._merge_source(tx, using), table, on=self._matched(root.args["on"], ours, theirs))
        for when, condition, action in self._whens(edits):
            merge = self._with_clause(merge, when, condition, action, edits)
        return merge.merge()

    def _check_whens(self, whens: exp.Expr, names: Sequence[str]) -> None:
        """`Misuse` if an expression of a clause has a subquery, or a column that belongs to neither side."""
        if whens.find(exp.Query, exp.Table):
            raise Misuse(f"{self._what()}: a subquery in WHEN is not supported: compute it in USING (SELECT …)")
        known = {name.lower() for name in names}
        for when in whens.expressions:
            then = when.args["then"]
            parts = [when.args.get("condition")]
            if isinstance(then, exp.Update) and not _updates_all(then):
                parts += [each.expression for each in then.expressions if isinstance(each, exp.EQ)]
            elif isinstance(then, exp.Insert):
                parts.append(then.args.get("expression"))
            for column in (found for part in parts if part is not None for found in part.find_all(exp.Column)):
                if isinstance(column.this, exp.Star):
                    continue
                if len(column.parts) < 2 or column.parts[0].name.lower() not in known:
                    raise Misuse(
                        f"{self._what()}: column {column.sql('spark')} names neither source nor target: write "
                        + " or ".join(f"{name}.{column.name}" for name in names)
                    )

    def _merge_source(self, tx: SparkTransaction, using: exp.Expr) -> Any:
        if isinstance(using, exp.Table):
            at = using.this.meta["start"]
            if at in self._frames_at:
                return self._frames[self._frames_at[at]]
            known = self._known(tx)
            if using.name in known:
                return tx.read(using.name)
            self._check_case(using.name, known)
            try:
                return tx.session.table(quoted(using.name))
            except PySparkException as error:
                raise Misuse(f"{self._what()}: {reason(error)}") from error
        if not isinstance(using, exp.Subquery):
            raise Misuse(f"{self._what()}: USING takes a table, a frame or a query in parentheses")
        begin = self._index("USING") + 1
        end = self._index_after_parenthesis(begin) - 1
        span = self._tokens[begin].end + 1, self._tokens[end].start
        return self._frame(tx, using.this, *span)

    def _matched(self, on: exp.Expr, ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
        """Return the columns that `ON` compares: one name on both sides."""
        found: list[str] = []
        for equality in _conjuncts(on):
            sides = [equality.left, equality.right] if isinstance(equality, exp.EQ) else []
            qualifiers = {side.table.lower() for side in sides if isinstance(side, exp.Column)}
            names = {side.name.lower() for side in sides if isinstance(side, exp.Column)}
            if len(qualifiers) != 2 or len(names) != 1 or not _one_of_each(qualifiers, ours, theirs):
                raise Misuse(
                    f"{self._what()}: ON {equality.sql('spark')} is not an equality of one column's name on both "
                    f"sides, such as {ours[0]}.id = {theirs[0]}.id; rename the source's columns in a query: USING "
                    "(SELECT …)"
                )
            found.append(sides[0].name)
        return found

    def _with_clause(
        self, merge: Merge, when: exp.When, condition: str | None, action: int, edits: list[Edit]
    ) -> Merge:
        """Return the merge with one more clause. `action`: the number of the action's first token."""
        then, matched, by_source = when.args["then"], when.args.get("matched"), when.args.get("source")
        if matched or by_source:
            clause = merge.whenMatched(condition) if matched else merge.whenNotMatchedBySource(condition)
            if then == exp.var("DELETE"):
                return clause.delete()
            if isinstance(then, exp.Update) and not _updates_all(then):
                names, end = _names(self.root.this), self._next_when(action)
                return clause.update(self._assignments(action + 2, end, edits, then.expressions, names))
            if isinstance(then, exp.Update) and isinstance(clause, WhenMatched):
                return clause.updateAll()
        elif isinstance(then, exp.Insert):
            inserting = merge.whenNotMatched(condition)
            if then.this == exp.Star():
                return inserting.insertAll()
            return inserting.insert(self._inserted(then, action, edits))
        raise Misuse(
            f"{self._what()}: {when.sql('spark')} is not supported: matched rows, and with BY SOURCE rows of the "
            "target, are updated or deleted; a row that is not matched is inserted"
        )

    def _inserted(self, then: exp.Insert, action: int, edits: list[Edit]) -> dict[str, str]:
        columns = [each.name for each in then.this.expressions] if then.this else []
        at = self._index("VALUES", action, self._next_when(action)) + 1
        end = self._index_after_parenthesis(at) - 1
        spans = list(self._separated(at + 1, end))
        given = then.expression.expressions if isinstance(then.expression, exp.Tuple) else []
        if not columns or len(columns) != len(spans):
            raise Misuse(f"{self._what()}: INSERT (…) VALUES (…) has {len(columns)} columns and {len(spans)} values")
        if len(given) != len(spans):
            raise self._unclear("VALUES")
        self._check_once(columns)
        values = [self._part(*span, edits, node) for span, node in zip(spans, given, strict=True)]
        return dict(zip(columns, values, strict=True))

    # Tables

    def _create(self, tx: SparkTransaction) -> None:
        root = self.root
        if root.args["kind"] != "TABLE":
            raise Misuse(f"{self._what()}: CREATE supports only tables")
        if root.args.get("expression") is not None:
            raise Misuse(
                f"{self._what()}: CREATE TABLE … AS SELECT is not supported: create the table with its columns and "
                "PRIMARY KEY, then INSERT INTO it, or write a frame by tx.write(frame, table, row_key=[…])"
            )
        _only(root, "CREATE TABLE", "this", "kind", "exists")
        if not isinstance(root.this, exp.Schema):
            raise Misuse(f"{self._what()}: the table has no columns")
        table = self._target(root.this.this, "CREATE TABLE")
        types, key = self._columns(root.this)
        if not key:
            raise Misuse(f"{self._what()}: the table has no row key: add PRIMARY KEY (column, …)")
        for name in key:
            if name not in types:
                raise Misuse(f"{self._what()}: PRIMARY KEY names {name!r}, which is not a column{near(name, types)}")
        conn = tx.connection
        if table_or_none(conn, table) is not None:
            if root.args.get("exists"):
                return
            raise Misuse(f"{self._what()}: table {table!r} already exists", table=table)
        fields = fields_of(_struct(tx.session, types, self._what()))
        prepared_table(conn, table, fields, WriteOptions(row_key=row_key_parts(key)), None)

    def _columns(self, schema: exp.Schema) -> tuple[dict[str, str], list[str]]:
        """Return the columns' types by name, and the names of the key."""
        types: dict[str, str] = {}
        key: list[str] = []
        never_null: list[str] = []
        for given in schema.expressions:
            named = given.expressions if isinstance(given, exp.Constraint) else []
            each = named[0] if len(named) == 1 and isinstance(named[0], exp.PrimaryKey) else given
            if isinstance(each, exp.PrimaryKey):
                key += [self._key_column(part) for part in each.expressions]
                continue
            if not isinstance(each, exp.ColumnDef) or each.args.get("kind") is None:
                raise Misuse(f"{self._what()}: {each.sql('spark')} is not supported: give columns and PRIMARY KEY")
            if each.name in types:
                raise Misuse(f"{self._what()}: column {each.name!r} is named twice")
            if any(kind.this == exp.DType.TIME for kind in each.args["kind"].find_all(exp.DataType)):
                raise Misuse(f"{self._what()}: the type TIME of column {each.name!r} is not supported")
            self._check_type(each.name, each.args["kind"])
            types[each.name] = each.args["kind"].sql("spark")
            for constraint in each.args.get("constraints") or ():
                if isinstance(constraint.kind, exp.PrimaryKeyColumnConstraint):
                    if any(value for value in constraint.kind.args.values()):
                        raise Misuse(f"{self._what()}: {constraint.sql('spark')} of column {each.name!r}: {_NO_ORDER}")
                    key.append(each.name)
                elif isinstance(constraint.kind, exp.NotNullColumnConstraint):
                    never_null.append(each.name)
                else:
                    raise Misuse(f"{self._what()}: {constraint.sql('spark')} of column {each.name!r} is not supported")
        for name in never_null:
            if name not in key:
                raise Misuse(f"{self._what()}: NOT NULL of column {name!r}: only key columns are never null")
        return types, key

    def _key_column(self, part: exp.Expr) -> str:
        if not isinstance(part, exp.Column | exp.Identifier):
            raise Misuse(f"{self._what()}: PRIMARY KEY ({part.sql('spark')}): {_NO_ORDER}")
        return part.name

    def _check_type(self, column: str, kind: exp.Expr) -> None:
        """`Misuse` if a type declares what is not kept: a length, a precision of times, something about a field."""
        for each in kind.find_all(exp.DataType):
            if each.this in _SIZED and each.expressions:
                raise Misuse(
                    f"{self._what()}: the type {each.sql('spark')} of column {column!r} declares a length or a "
                    "precision, which is not kept: declare STRING or TIMESTAMP, and check values before the write"
                )
        for field in kind.find_all(exp.ColumnDef):
            if field.args.get("constraints"):
                raise Misuse(
                    f"{self._what()}: {field.sql('spark')} of column {column!r}: a field of a struct has a name and a "
                    "type only"
                )

    def _drop(self, tx: SparkTransaction) -> None:
        root = self.root
        _only(root, "DROP TABLE", "tables", "this", "kind", "exists")
        tables = root.args.get("tables") or [root.this]
        if root.args.get("kind") != "TABLE" or len(tables) != 1:
            raise Misuse(f"{self._what()}: DROP TABLE takes one table")
        table = self._target(tables[0], "DROP TABLE")
        if table_or_none(tx.connection, table) is None and root.args.get("exists"):
            return
        tx.connection.table(table)
        drop_table(tx.connection.deployment, table)

    def _describe(self, reads: Reads) -> DataFrame:
        _only(self.root, "DESCRIBE", "this", "kind")
        if self.root.args.get("kind") not in (None, "", "TABLE"):
            raise Misuse(f"{self._what()}: DESCRIBE takes a table")
        schema = schema_of(reads.connection.table(self._target(self.root.this, "DESCRIBE")))
        places = {part.name: f"row key {number}" for number, part in enumerate(schema.row_key, 1)}
        rows = [(each.name, _type_text(each.spark_type), places.get(each.name)) for each in schema.columns]
        return reads.session.createDataFrame(rows, "col_name string, data_type string, comment string")

    def _show(self, reads: Reads) -> DataFrame:
        found = re.fullmatch(r"\s*SHOW\s+TABLES(?:\s+(?:LIKE\s+)?'([^']*)')?\s*;?\s*", self._text, re.IGNORECASE)
        if found is None:
            raise Misuse(f"{self._what()}: of SHOW, only SHOW TABLES [LIKE 'pattern'] is supported")
        patterns = [each.strip().lower() for each in (found[1] or "*").split("|")]
        names = [name for name in self._known(reads) if any(fnmatch.fnmatchcase(name.lower(), p) for p in patterns)]
        rows = [("", name, False) for name in names]
        return reads.session.createDataFrame(rows, "namespace string, tableName string, isTemporary boolean")

    # Places in the text

    def _what(self) -> str:
        line = " ".join(self._given.split())
        return f"SQL {line if len(line) <= 80 else line[:77] + '…'}"

    def _known(self, reads: Reads) -> list[str]:
        return [info.name for info in user_tables(reads.connection.deployment.catalog)]

    def _target(self, table: exp.Expr, clause: str) -> str:
        if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
            raise Misuse(f"{self._what()}: {clause} takes the name of a table")
        _only(table, clause, "this", "alias")
        if table.alias_column_names:
            raise Misuse(f"{self._what()}: column names after an alias are not supported")
        if table.this.meta["start"] in self._frames_at:
            raise Misuse(f"{self._what()}: {clause} takes the name of a table, not a frame")
        return table.name

    def _refuse_subqueries(self, clause: str) -> None:
        if self.root.find(exp.Query) or any(table is not self.root.this for table in self.root.find_all(exp.Table)):
            raise Misuse(
                f"{self._what()}: {clause} with a subquery is not supported: use MERGE INTO … USING (SELECT …)"
            )

    def _renamed(self, names: Mapping[str, str]) -> list[Edit]:
        """Return the edits that replace qualifiers of columns. `names`: qualifier → its replacement; "" removes it."""
        wanted = {name.lower(): to for name, to in names.items()}
        edits = []
        for column in self.root.find_all(exp.Column):
            first, *others = column.parts
            to = wanted.get(first.name.lower())
            if to is None or not others:
                continue
            taken = to or others[0].name
            if any(taken.lower() == each.name.lower() for each in _lambda_names(column)):
                raise Misuse(
                    f"{self._what()}: rename the variable {taken!r} of the lambda function: {taken!r} is taken"
                )
            end = others[0].meta["start"] if not to else first.meta["end"] + 1
            edits.append(Edit(first.meta["start"], end, to))
        return edits

    def _slice(self, start: int, end: int, edits: Iterable[Edit] = (), *, escape: bool = False) -> str:
        """Return a part of the text with the edits in it. `escape`: as in `_edited`."""
        inside = [edit for edit in edits if start <= edit.start and edit.end <= end]
        return _edited(self._text[:end], inside, start, escape=escape).strip().rstrip(";")

    def _condition(self, where: int | None, edits: list[Edit]) -> str | None:
        node = self.root.args.get("where")
        if (where is None) != (node is None):
            raise self._unclear("WHERE")
        if where is None or node is None:
            return None
        return self._part(self._tokens[where].end + 1, len(self._text), edits, node.this)

    def _part(self, start: int, end: int, edits: list[Edit], node: exp.Expr) -> str:
        """Return the text of an expression. `Misuse` unless this part of the text is the parsed expression."""
        if not _is_text_of(self._text[start:end], node):
            raise self._unclear(node.sql("spark"))
        return self._slice(start, end, edits)

    def _unclear(self, what: str) -> Misuse:
        return Misuse(
            f"{self._what()}: cannot locate {what} in the statement: put names that are SQL keywords in backquotes"
        )

    def _check_once(self, columns: Sequence[str]) -> None:
        for number, name in enumerate(columns):
            if name.lower() in (each.lower() for each in columns[:number]):
                raise Misuse(f"{self._what()}: column {name!r} is set twice", column=name)

    def _assignments(
        self, begin: int, end: int, edits: list[Edit], nodes: Sequence[exp.Expr], qualifiers: Sequence[str]
    ) -> dict[str, str]:
        """Return column → text of its value, for each `column = value` among these tokens. `nodes`: the assignments as
        parsed; `qualifiers`: the names that may qualify a column."""

        known = {name.lower() for name in qualifiers}
        names, values = list[str](), list[str]()
        spans = list(self._separated(begin, end))
        if len(spans) != len(nodes):
            raise self._unclear("SET")
        for (start, stop), node in zip(spans, nodes, strict=True):
            column = node.this if isinstance(node, exp.EQ) else None
            equal = next(
                (t for _, t in self._top(begin, end) if start <= t.start < stop and t.token_type == TokenType.EQ), None
            )
            if not isinstance(column, exp.Column) or equal is None:
                raise Misuse(f"{self._what()}: {self._text[start:stop].strip()!r} is not of the form column = value")
            first, *others = column.parts
            if len(others) > 1 or (others and first.name.lower() not in known):
                raise Misuse(
                    f"{self._what()}: {column.sql('spark')} is not a column of the table: set a whole column; a field "
                    "of a struct is set by column = named_struct(…)",
                    column=column.name,
                )
            names.append(column.name)
            values.append(self._part(equal.end + 1, stop, edits, node.expression))
        self._check_once(names)
        return dict(zip(names, values, strict=True))

    def _separated(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the start and end in the text of each part that commas separate among these tokens."""
        start = self._tokens[begin].start
        for _, token in self._top(begin, end):
            if token.token_type == TokenType.COMMA:
                yield start, token.start
                start = token.end + 1
        yield start, self._tokens[end].start if end < len(self._tokens) else len(self._text)

    def _top(self, begin: int, end: int | None = None) -> Iterator[tuple[int, Token]]:
        """Yield the tokens outside of parentheses, brackets and CASE, with their numbers."""
        opens = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE)
        closes = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END)
        depth = 0
        for number in range(begin, len(self._tokens) if end is None else end):
            token = self._tokens[number]
            if token.token_type in closes:
                depth -= 1
            if depth <= 0:
                yield number, token
            if token.token_type in opens:
                depth += 1

    def _index(self, word: str, begin: int = 0, end: int | None = None) -> int:
        found = self._index_or_none(word, begin, end)
        if found is None:
            raise Misuse(f"{self._what()}: {word} is missing")
        return found

    def _index_or_none(self, word: str, begin: int = 0, end: int | None = None) -> int | None:
        return next((i for i, _ in self._top(begin, end) if self._is_word(i, word)), None)

    def _is_word(self, number: int, *words: str) -> bool:
        """Return whether a token is one of these words: not a string, not a quoted name, not after a dot."""
        token = self._tokens[number]
        if self._text[token.start : token.end + 1].upper() not in words:
            return False
        return number == 0 or self._text[self._tokens[number - 1].end] != "."

    def _index_after(self, table: exp.Expr) -> int:
        """Return the number of the first token after a table's name."""
        end = table.this.meta["end"]
        return next(i for i, token in enumerate(self._tokens) if token.start > end)

    def _index_after_parenthesis(self, at: int) -> int:
        """Return the number of the token after the parenthesis that opens here."""
        closing = next(i for i, token in self._top(at) if i > at)
        return closing + 1

    def _whens(self, edits: list[Edit]) -> Iterator[tuple[exp.When, str | None, int]]:
        """Yield each WHEN of a merge, with its condition and the number of its action's first token."""
        whens = iter(self.root.args["whens"].expressions)
        for at, _ in self._top(0):
            if not self._is_word(at, "WHEN"):
                continue
            node = next(whens, None)
            if node is None:
                raise self._unclear("WHEN")
            then = self._index("THEN", at)
            word = self._index_or_none("AND", at, then)
            given = node.args.get("condition")
            if (word is None) != (given is None):
                raise self._unclear("WHEN")
            condition = None
            if word is not None and given is not None:
                condition = self._part(self._tokens[word].end + 1, self._tokens[then].start, edits, given)
            yield node, condition, then + 1
        if next(whens, None) is not None:
            raise self._unclear("WHEN")

    def _next_when(self, at: int) -> int:
        found = self._index_or_none("WHEN", at)
        return len(self._tokens) if found is None else found


def _filled(text: str, args: Mapping[str, Any]) -> str:
    """Return the text with the values of its parameters `:name`, as literals."""
    tokens, edits, used = _tokens(text), [], set()
    names = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.STRING)
    for number, token in enumerate(tokens[:-1]):
        follows = tokens[number + 1]
        if token.token_type != TokenType.COLON or follows.start != token.end + 1:
            continue
        if number and tokens[number - 1].token_type in names and tokens[number - 1].end + 1 == token.start:
            continue  # a path into a variant
        name = text[follows.start : follows.end + 1]
        if name not in args:
            raise Misuse(f"the SQL statement has a parameter :{name}, and args has no {name!r}{near(name, args)}")
        used.add(name)
        literal = _literal(name, args[name])
        if number and tokens[number - 1].text.upper() == "INTERVAL":
            literal = literal.strip("()")  # INTERVAL takes a number, and no expression
        edits.append(Edit(token.start, follows.end + 1, " " + literal))
    unused = sorted(set(args) - used)
    if unused:
        raise Misuse(f"args has {unused[0]!r}, but the SQL statement has no parameter :{unused[0]}")
    return _edited(text, edits)


def _edited(text: str, edits: Iterable[Edit], start: int = 0, *, escape: bool = False) -> str:
    """Return the text from `start` with these edits. `escape`: double its braces, for Spark's formatter."""

    def kept(part: str) -> str:
        return part.replace("{", "{{").replace("}", "}}") if escape else part

    pieces, at = [], start
    for edit in sorted(edits, key=lambda each: each.start):
        if edit.start < at:
            continue  # sqlglot made two nodes of one place
        pieces += [kept(text[at : edit.start]), edit.text]
        at = edit.end
    return "".join([*pieces, kept(text[at:])])


def _with_frames(text: str, frames: Mapping[str, Any]) -> tuple[str, dict[int, str]]:
    """Replace each `{name}` by a quoted name of the same length. Return the text, and the names by their positions."""
    tokens, edits, places = _tokens(text), [], {}
    for opening, name, closing in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if opening.token_type != TokenType.L_BRACE or closing.token_type != TokenType.R_BRACE:
            continue
        word = text[name.start : name.end + 1]
        if word not in frames:
            raise Misuse(f"the SQL statement names a frame {{{word}}}, and none was given{near(word, frames)}")
        places[opening.start] = word
        spaces = closing.end - opening.start - 1 - len(word)
        edits.append(Edit(opening.start, closing.end + 1, f"`{word}`" + " " * spaces))
    unused = sorted(set(frames) - set(places.values()))
    if unused:
        raise Misuse(f"a frame {unused[0]!r} was given, but the SQL statement has no {{{unused[0]}}}")
    return _edited(text, edits), places


def _literal(name: str, value: Any) -> str:
    """Return a value as a SQL literal of Spark. `MisuseType` for a value that has none."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return (
                f"({int(value)})"
                if -(1 << 31) <= value < 1 << 31
                else f"CAST('{int(value)}' AS {_integer(name, value)})"
            )
        case numbers.Integral():  # of numpy
            return _literal(name, int(value))
        case float():
            return f"CAST('{float(value)!r}' AS DOUBLE)"
        case Decimal():
            if value.is_finite():
                digits, exponent = len(value.as_tuple().digits), int(value.as_tuple().exponent)
                scale = max(0, -exponent)
                return f"CAST('{value:f}' AS DECIMAL({max(digits + max(0, exponent), scale)}, {scale}))"
        case str() if any(each in value for each in "\\'$"):  # sessions differ in how they read these in a literal
            return f"CAST(X'{value.encode().hex()}' AS STRING)"
        case str():
            return "'" + value + "'"
        case bytes():
            return f"X'{value.hex()}'"
        case date() if value != value:
            pass  # pandas.NaT
        case datetime() if getattr(value, "nanosecond", 0):
            raise Misuse(
                f"the value of :{name} is {value!r}, and Spark's timestamps have no nanoseconds: round it, such as by "
                "value.floor('us')",
                value=value,
            )
        case datetime():
            kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
            return f"{kind} '{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
    raise MisuseType(
        f"the value of :{name} is {value!r}, of type {type(value).__name__}; a parameter is None, a bool, int, float, "
        "Decimal, str, bytes, date or datetime; give rows as a frame: {name}",
        value=value,
    )


def _integer(name: str, value: int) -> str:
    if -(1 << 63) <= value < 1 << 63:
        return "BIGINT"
    if abs(value) < 10**38:
        return "DECIMAL(38, 0)"
    raise Misuse(f"the value of :{name} is {value}, which no integer type of Spark holds", value=value)


_COMMENTS: Final = re.compile(r"(?:\s|--[^\n\\]*(?:\n|$)|/\*(?!\+)(?:(?!/\*|\*/).)*\*/)*", re.DOTALL)
"""What may be between two tokens: whitespace, and comments that end at the same place for Spark and for sqlglot."""

_NO_ORDER: Final = "a key column has no order here; pyomid's row_key=['name desc'] stores greater values first"

_SIZED: Final = frozenset(
    kind for kind in exp.DType if kind.name.endswith(("CHAR", "TEXT", "BINARY")) or kind.name.startswith("TIME")
)
"""Types whose parameter pyomid would lose."""


def _updates_all(then: exp.Expr) -> bool:
    """Whether the action is UPDATE SET * or UPDATE *."""
    given = then.args.get("expressions")
    return isinstance(given, exp.Star) or given == [exp.Star()]


def _conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """Return the parts of a condition that AND joins, in parentheses or not."""
    plain = node.unnest()
    return [*_conjuncts(plain.left), *_conjuncts(plain.right)] if isinstance(plain, exp.And) else [plain]


@contextmanager
def _not_too_deep(what: str) -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise Misuse(
            f"{what}: an expression is nested too deeply to be read: compute parts of it in a query, WITH … AS (…)"
        ) from error


def _parse_with_spark(session: SparkSession, text: str) -> None:
    """Have Spark's parser read a statement, and nothing be done. `ParseException` if it is not Spark's."""
    jvm = getattr(session, "_jsparkSession", None)
    if jvm is not None:
        try:
            jvm.sessionState().sqlParser().parsePlan(text)
        except PySparkException:
            raise
        except Exception as error:  # of the bridge to the JVM: not all of the parser's errors have a class in Python
            raise ParseException(str(error).partition("\n: ")[2].partition("\n")[0] or str(error)) from error
        return
    try:  # Spark Connect
        session.sql(f"EXPLAIN {text}")
    except ParseException:
        raise
    except PySparkException:  # it was parsed, and names tables that Spark does not know
        pass


def _readable(text: str) -> str:
    """Return the text, of the same length, with what sqlglot cannot read in a form that it can: the operator `>>>`, and
    a path of several steps into a variant. Strings, quoted names, comments and nested types stay as they are."""
    if ">>>" not in text and _PATH.search(text) is None:
        return text
    edits, depth, before = list[Edit](), 0, None
    for token in sqlglot.tokenize(text, dialect="spark"):
        kind, at = token.token_type, token.start
        if kind == TokenType.LT and before in _NESTED:
            depth += 1
        elif kind == TokenType.GT and depth:
            depth -= 1
        elif kind == TokenType.GT and text.startswith(">>>", at):
            edits.append(Edit(at + 2, at + 3, " "))
        elif kind == TokenType.COLON and (path := _PATH.match(text, at)) is not None:
            edits.append(Edit(*path.span(1), " " * len(path[1])))
        before = kind
    return _edited(text, edits)


_NESTED: Final = (TokenType.ARRAY, TokenType.MAP, TokenType.STRUCT)
_PATH: Final = re.compile(r"(?<=[\w`)\]]):\w+((?:\.\w+)+)")
"""A path of several steps into a variant; the group is what follows the first."""


def _tokens(text: str) -> list[Token]:

    try:
        return list(sqlglot.tokenize(_readable(text), dialect="spark"))
    except SqlglotError as error:
        raise Misuse(f"the SQL statement {text!r} cannot be read: {error}") from error


def _parsed(text: str, given: str) -> exp.Expr:

    try:
        with _not_too_deep(f"SQL {given[:80]}"):
            found = [each for each in sqlglot.parse(_readable(text), dialect="spark") if each is not None]
    except SqlglotError as error:
        raise Misuse(f"the SQL statement {given!r} cannot be read: {str(error).splitlines()[0]}") from error
    if len(found) != 1:
        raise Misuse(f"{len(found)} SQL statements were given: give one to each call")
    return found[0]


def _without_semicolon(text: str) -> str:
    """Return a statement without the semicolon at its end and what follows."""
    tokens = _tokens(text)
    return text[: tokens[-1].start] if tokens and tokens[-1].token_type == TokenType.SEMICOLON else text


def _is_text_of(text: str, node: exp.Expr) -> bool:
    """Return whether a text, parsed by itself, is this expression."""
    try:
        alone = sqlglot.parse_one(_readable(f"SELECT 1 WHERE {text}"), dialect="spark")
    except SqlglotError:
        return False
    return {name for name, value in alone.args.items() if value} == {"expressions", "where"} and (
        alone.args["where"].this == node
    )


def _lambda_names(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the variables of the lambda functions around a node."""
    at = node.parent
    while at is not None:
        if isinstance(at, exp.Lambda):
            yield from at.expressions
        at = at.parent


def _tables(query: exp.Expr, frames_at: Collection[int] = ()) -> list[exp.Table]:
    """Return the tables that a query names, without those that its WITH defines. `frames_at`: positions of frames."""
    found = [
        table
        for table in query.find_all(exp.Table)
        if isinstance(table.this, exp.Identifier)
        and (table.this.meta["start"] in frames_at or not _is_of_with(table))
        and table.find_ancestor(exp.Hint) is None
    ]
    return sorted(found, key=lambda table: table.this.meta["start"])


def _is_of_with(table: exp.Table) -> bool:
    """Return whether an enclosing WITH defines the table's name. A query of a WITH sees the queries before it, and
    itself if the WITH is recursive."""

    if table.args.get("db"):
        return False
    name, node = table.name.lower(), table.parent
    within: exp.Expr | None = None
    while node is not None:
        if isinstance(node, exp.CTE):
            within = node
        defined = node.args.get("with_")
        if defined is not None:
            visible = defined.expressions
            inside = next((n for n, each in enumerate(visible) if each is within), None)
            if inside is not None:
                visible = visible[: inside + bool(defined.args.get("recursive"))]
            if any(each.alias.lower() == name for each in visible):
                return True
        node = node.parent
    return False


def _near_one(query: exp.Expr, tables: Iterable[str]) -> str:
    named = [table.name for table in _tables(query)]
    return near(named[0], tables) if named else ""


def _only(node: exp.Expr, clause: str, *known: str) -> None:
    """`Misuse` if a node has another clause than these."""
    for name, value in node.args.items():
        if value and name not in known:
            raise Misuse(f"{clause}: {_CLAUSES.get(name, name.strip('_').upper())} is not supported")


def _names(table: exp.Expr) -> list[str]:
    """Return the names by which columns of a table may be qualified."""
    return [table.alias] if table.alias else [table.name] if table.name else []


def _one_of_each(qualifiers: set[str], ours: Sequence[str], theirs: Sequence[str]) -> bool:
    return bool(qualifiers & {name.lower() for name in ours}) and bool(qualifiers & {name.lower() for name in theirs})


def _spark_frame(spark: SparkSession, given: Any, name: str) -> DataFrame:

    rows = rows_given(spark, given, f"the frame {{{name}}}")
    return rows if hasattr(rows, "createOrReplaceTempView") else spark.createDataFrame(rows)


def _fitting(frame: DataFrame, info: TableInfo, what: str) -> DataFrame:
    """Return the frame with values cast to their columns' types where that loses nothing."""
    schema = schema_of(info)
    types = {field.name: field.dataType for field in struct_of(schema, [c.name for c in schema.columns]).fields}
    fields = frame.schema.fields
    if not any(field.name in types and field.dataType != types[field.name] for field in fields):
        return frame
    return frame.select(
        *(
            fitted(f.col(quoted(each.name)), each.dataType, types[each.name], what, each.name).alias(each.name)
            if each.name in types
            else f.col(quoted(each.name))
            for each in fields
        )
    )


def _struct(spark: SparkSession, types: Mapping[str, str], what: str) -> Any:

    try:
        text = ", ".join(f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in types.items())
        return spark.sql(f"SELECT {text}").schema
    except PySparkException as error:
        raise Misuse(f"{what}: {reason(error)}") from error


def _type_text(spark_type: str) -> str:
    """Return a stored type as Spark's `simpleString`."""
    text = spark_type if spark_type.startswith("{") else json.dumps(spark_type)
    return str(_parse_datatype_json_string(text).simpleString())
