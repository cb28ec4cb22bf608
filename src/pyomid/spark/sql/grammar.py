"""Parses the statements that pyomid performs into their names and clauses, and the parts that Spark computes.

A rule consumes every token of a statement or raises `Misuse`. Expressions, queries and types are consumed as parts:
this module only finds their ends, and Spark parses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyomid.errors import Misuse
from pyomid.rows.schema import near
from pyomid.spark.sql.tokens import Cursor, Kind, Part, Token, tokens_of

_QUERY: Final = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "MAP", "REDUCE", "(")
"""Words with which a query may begin."""

_WHEN: Final = ("WHEN MATCHED", "WHEN NOT MATCHED", "WHEN ! MATCHED")

_OF_COLUMN: Final = (
    "PRIMARY KEY", "NOT NULL", "! NULL", "NULL", "DEFAULT", "COMMENT", "GENERATED", "CHECK", "UNIQUE", "REFERENCES",
    "CONSTRAINT", "FOREIGN KEY",
)  # fmt: skip
"""Keywords that may follow a column's type."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query, with the WITH clause that precedes the statement to which the query belongs."""

    part: Part
    """The query's text; for the source of a merge it may be only a table's name."""
    ctes: Part | None = None

    @property
    def parts(self) -> list[Part]:
        return [self.part] if self.ctes is None else [self.ctes, self.part]


@dataclass(frozen=True, slots=True)
class Past:
    """A clause VERSION or TIMESTAMP AS OF after a table's name."""

    clause: str
    is_time: bool
    value: str
    """The text of the clause's value, a Spark expression."""
    end: int
    """Position in the statement where the clause ends."""


@dataclass(frozen=True, slots=True)
class Insert:
    table: str
    columns: list[str] | None
    by_name: bool
    overwrite: bool
    query: Query


@dataclass(frozen=True, slots=True)
class Update:
    table: str
    name: str
    """The table's alias, or its name without one; it may qualify columns."""
    values: dict[str, str]
    where: str | None


@dataclass(frozen=True, slots=True)
class Delete:
    table: str
    name: str
    where: str | None


@dataclass(frozen=True, slots=True)
class When:
    """One clause of a merge. `action`: DELETE, UPDATE or INSERT. `values`: the given values, or None for `*`."""

    matched: bool
    by_source: bool
    condition: str | None
    action: str
    values: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class MergeInto:
    table: str
    name: str
    source: Token | Query
    """A frame, a query, or the name of a table as a query."""
    source_name: str
    on: list[str]
    whens: list[When]


@dataclass(frozen=True, slots=True)
class CreateTable:
    table: str
    if_missing: bool
    types: dict[str, str]
    key: list[str]


@dataclass(frozen=True, slots=True)
class DropTable:
    table: str
    if_present: bool


@dataclass(frozen=True, slots=True)
class DescribeTable:
    table: str


@dataclass(frozen=True, slots=True)
class ShowTables:
    pattern: str


@dataclass(frozen=True, slots=True)
class Other:
    """A statement that pyomid does not perform."""


Statement = Query | Insert | Update | Delete | MergeInto | CreateTable | DropTable | DescribeTable | ShowTables | Other


def parsed(text: str, what: str) -> tuple[Statement, Part]:
    """Return the parsed statement, and its tokens without the semicolons at the end. `what`: how errors name the
    statement."""
    whole = Part(text, tokens_of(text, what))
    given = [part for part in whole.split(";") if part.tokens]
    if len(given) != 1:
        raise Misuse(f"the SQL text holds {len(given)} statements; give exactly one statement to each call")
    return _statement(Cursor(given[0], what)), given[0]


def _statement(cursor: Cursor) -> Statement:
    ctes = _ctes_before_change(cursor)
    if cursor.sees("INSERT"):
        return _insert(cursor, ctes)
    if cursor.sees("MERGE"):
        return _merge(cursor, ctes)
    if ctes is not None:
        raise Misuse(f"{cursor.what}: WITH before {cursor.shown()} is not supported; {_USE_MERGE}")
    if cursor.sees(*_QUERY):
        return Query(cursor.until())
    rules: dict[str, Callable[[Cursor], Statement]] = {
        "UPDATE": _update,
        "DELETE": _delete,
        "CREATE": _create,
        "DROP": _drop,
        "DESCRIBE": _describe,
        "DESC": _describe,
        "SHOW": _show,
    }
    rule = next((rule for word, rule in rules.items() if cursor.take(word)), None)
    return Other() if rule is None else rule(cursor)


def _ctes_before_change(cursor: Cursor) -> Part | None:
    """Consume a WITH clause before INSERT, UPDATE, DELETE or MERGE."""
    if not cursor.sees("WITH"):
        return None
    part = cursor.part
    for number in part.top():
        is_change = any(part.has(number, word) for word in ("INSERT", "UPDATE", "DELETE", "MERGE"))
        if is_change and part.tokens[number - 1].text == ")":
            cursor.at = number
            return Part(part.whole, part.tokens[:number])
    return None


_OF_PAST: Final = {"VERSION": False, "SYSTEM_VERSION": False, "TIMESTAMP": True, "SYSTEM_TIME": True}
"""The words before AS OF, and whether a time follows them."""


def past_of(part: Part, number: int, what: str) -> Past | None:
    """Return the clause VERSION or TIMESTAMP AS OF that follows the table at this token; None if there is none."""
    cursor = Cursor(part, what)
    cursor.at = number + 1
    cursor.take("FOR")
    word = next((word for word in _OF_PAST if cursor.take(f"{word} AS OF")), None)
    if word is None:
        return None
    begin, token, clause = cursor.at, cursor.token, f"{word} AS OF"
    if token is not None and token.kind in (Kind.STRING, Kind.NUMBER):
        cursor.at += 1
    elif token is not None and token.kind is Kind.WORD:
        cursor.at += 1
        following = cursor.token
        if following is not None and following.kind is Kind.STRING:  # TIMESTAMP '…'
            cursor.at += 1
        else:
            cursor.group(f"the arguments of {token.text} after {clause}")
    else:
        cursor.group(f"a value or an expression after {clause}")
    if cursor.sees("+", "-", "*", "/", "%", "|", ":", "["):
        raise Misuse(f"{what}: put the expression after {clause} in parentheses")
    value = Part(part.whole, part.tokens[begin : cursor.at])
    return Past(clause, _OF_PAST[word], value.text, value.end)


# Names


def _table(cursor: Cursor, clause: str) -> str:
    """Consume the name of a table of the database."""
    token = cursor.token
    if token is not None and token.kind is Kind.FRAME:
        raise Misuse(f"{cursor.what}: {clause} needs the name of a table, not a frame")
    name = cursor.name(f"the table's name after {clause}")
    if cursor.sees("."):
        raise Misuse(f"{cursor.what}: a catalog or schema before the table's name is not supported")
    return name


def _alias(cursor: Cursor, *follows: str) -> str | None:
    """Consume an alias. `follows`: the words that end it."""
    token = cursor.token
    if not cursor.take("AS") and (token is None or not token.is_name or cursor.sees(*follows)):
        return None
    name = cursor.name("an alias")
    if cursor.sees("("):
        raise Misuse(f"{cursor.what}: column names after an alias are not supported; name columns with AS in a query")
    return name


def _column(cursor: Cursor, path: Sequence[str], name: str) -> str:
    """Return the column of a path, which the table's `name` may qualify."""
    if len(path) > 2 or (len(path) == 2 and path[0].lower() != name.lower()):
        raise Misuse(
            f"{cursor.what}: {'.'.join(path)} is not a column of the table; set a whole column. To change a field of a "
            "struct, set column = named_struct(…)",
            column=path[-1],
        )
    return path[-1]


def _check_once(cursor: Cursor, columns: Sequence[str]) -> None:
    for number, name in enumerate(columns):
        if name.lower() in (each.lower() for each in columns[:number]):
            raise Misuse(f"{cursor.what}: column {name!r} is set twice; set each column once", column=name)


# Expressions

_USE_MERGE: Final = "use MERGE INTO … USING (SELECT …)"


def _expression(cursor: Cursor, part: Part, clause: str) -> str:
    """Return the text of an expression. Raises `Misuse` if the part cannot be an expression, or if it reads a table."""
    what = cursor.what
    if not part.tokens:
        raise Misuse(f"{what}: an expression is missing in {clause}; put names that are SQL keywords in backquotes")
    if any(part.has(number, word) for number in part.top() for word in ("WHERE", *_WHEN)):
        raise Misuse(f"{what}: another clause begins inside {clause}; put names that are SQL keywords in backquotes")
    for token in part.tokens:
        if token.kind is Kind.FRAME:
            raise Misuse(f"{what}: the frame {token.text} is allowed only in place of a table name")
    if any(_begins_query(part, number) for number in range(len(part.tokens))):
        raise Misuse(f"{what}: {clause} with a subquery is not supported; {_USE_MERGE}")
    if len(part.tokens) == 1 and part.has(0, "DEFAULT"):
        raise Misuse(f"{what}: DEFAULT is not supported, because columns have no default values; write NULL")
    return part.text


def _begins_query(part: Part, number: int) -> bool:
    """Whether a subquery that reads a table may begin here. Every word except SELECT may also be a column's name."""
    if part.has(number, "SELECT"):
        return True
    begins = [word for word in ("FROM", "TABLE", "WITH", "MAP", "REDUCE") if part.has(number, word)]
    if not begins or not number or not part.has(number - 1, "("):
        return False
    following = part.tokens[number + 1]
    if following.text == "(" and begins[0] in ("MAP", "REDUCE"):  # a function, unless it names a script
        return any(token.is_("USING") for token in part.tokens)
    return following.kind is not Kind.SYMBOL or following.text == "("


def _assignments(cursor: Cursor, name: str, *stops: str) -> dict[str, str]:
    """Consume `column = value, …` up to one of the stops. `name`: the name that may qualify a column."""
    columns, values = list[str](), list[str]()
    while True:
        begin = cursor.at
        token = cursor.token
        if token is None or token.kind in (Kind.WORD, Kind.QUOTED, Kind.STRING):
            path = cursor.path("a column")
        else:
            path = []
        if not path or not cursor.take("= =", "="):
            cursor.at = begin
            given = cursor.until(",", *stops)
            raise Misuse(f"{cursor.what}: {given.text!r} is not of the form column = value")
        columns.append(_column(cursor, path, name))
        values.append(_expression(cursor, cursor.until(",", *stops), "SET"))
        if not cursor.take(","):
            break
    _check_once(cursor, columns)
    return dict(zip(columns, values, strict=True))


def _where(cursor: Cursor, clause: str) -> str | None:
    """Consume the rest of a statement: a WHERE clause, or nothing."""
    if not cursor.take("WHERE"):
        cursor.end()
        return None
    return _expression(cursor, cursor.until(), f"{clause} … WHERE")


# INSERT, UPDATE, DELETE


def _insert(cursor: Cursor, ctes: Part | None) -> Insert:
    cursor.need("INSERT")
    overwrite = cursor.take("OVERWRITE")
    if not overwrite:
        cursor.need("INTO")
    cursor.take("TABLE")
    table = _table(cursor, "INSERT")
    by_name = cursor.take("BY NAME")
    columns = None if by_name else _column_list(cursor)
    if not cursor.sees(*_QUERY) or cursor.sees("WITH ("):
        raise Misuse(
            f"{cursor.what}: {cursor.shown()} is not supported in INSERT; write a query here, such as SELECT …"
        )
    return Insert(table, columns, by_name, overwrite, Query(cursor.until(), ctes))


def _column_list(cursor: Cursor) -> list[str] | None:
    """Consume a list of columns in parentheses, unless the parentheses hold the query of an INSERT."""
    begin = cursor.at
    if not cursor.sees("("):
        return None
    inside = cursor.group("a list of columns")
    if not cursor.sees(*_QUERY):
        cursor.at = begin
        return None
    columns = []
    for part in inside.split(",", of_names=True):
        if len(part.tokens) != 1 or not part.tokens[0].is_name:
            raise Misuse(
                f"{cursor.what}: INSERT's column list takes plain column names, not string literals or dotted paths; "
                f"found {part.text or 'nothing'}"
            )
        columns.append(part.tokens[0].name)
    return columns


def _update(cursor: Cursor) -> Update:
    table = _table(cursor, "UPDATE")
    name = _alias(cursor, "SET") or table
    cursor.need("SET")
    values = _assignments(cursor, name, "WHERE")
    return Update(table, name, values, _where(cursor, "UPDATE"))


def _delete(cursor: Cursor) -> Delete:
    cursor.need("FROM")
    table = _table(cursor, "DELETE")
    name = _alias(cursor, "WHERE") or table
    return Delete(table, name, _where(cursor, "DELETE"))


# MERGE


def _merge(cursor: Cursor, ctes: Part | None) -> MergeInto:
    cursor.need("MERGE")
    cursor.need("INTO")
    table = _table(cursor, "MERGE")
    name = _alias(cursor, "USING") or table
    cursor.need("USING")
    token, source_name = cursor.token, ""
    source: Token | Query
    if cursor.sees("("):
        source = Query(cursor.group("a query"), ctes)
    elif token is not None and token.kind is Kind.FRAME:
        source, source_name, cursor.at = token, token.name, cursor.at + 1
    else:
        source_name = _table(cursor, "USING")
        source = Query(Part(cursor.part.whole, cursor.part.tokens[cursor.at - 1 : cursor.at]), ctes)
    source_name = _alias(cursor, "ON") or source_name
    if not source_name or source_name.lower() == name.lower():
        raise Misuse(f"{cursor.what}: source and target need different names; add an alias with AS")
    cursor.need("ON")
    on = _matched(cursor, cursor.until(*_WHEN), (name, source_name))
    whens = []
    while cursor.token is not None:
        whens.append(_when(cursor, name))
    if not whens:
        raise Misuse(f"{cursor.what}: WHEN is missing before the end; add a WHEN clause")
    return MergeInto(table, name, source, source_name, on, whens)


def _matched(cursor: Cursor, on: Part, names: tuple[str, str]) -> list[str]:
    """Return the columns that ON compares; each must have the same name on both sides."""
    found, left = list[str](), [on]
    while left:
        part = left.pop(0)
        while part.tokens and part.tokens[0].text == "(" and part.tokens[-1].text == ")" and len([*part.top()]) == 1:
            part = Part(part.whole, part.tokens[1:-1])
        parts = part.split("AND")
        if len(parts) > 1:
            left = [*parts, *left]
            continue
        found.append(_equal_column(cursor, part, names))
    return found


def _equal_column(cursor: Cursor, part: Part, names: tuple[str, str]) -> str:
    """Return the column of an equality `one.column = other.column`."""
    inner, paths = Cursor(part, cursor.what), list[list[str]]()
    for _ in range(2):
        token = inner.token
        if token is not None and token.is_name:
            paths.append(inner.path("a column"))
        if len(paths) == 1 and not inner.take("= =", "="):
            break
    sides = {path[0].lower() for path in paths if len(path) == 2}
    columns = {path[-1].lower() for path in paths}
    if inner.token is not None or sides != {name.lower() for name in names} or len(columns) != 1:
        one, other = names
        raise Misuse(
            f"{cursor.what}: ON must compare two columns of the same name, such as {one}.id = {other}.id, but is "
            f"{part.text}; rename the source's columns in a query: USING (SELECT …)"
        )
    return paths[0][-1]


def _when(cursor: Cursor, name: str) -> When:
    cursor.need("WHEN")
    matched = not cursor.take("NOT", "!")
    cursor.need("MATCHED")
    by_source = not matched and cursor.take("BY SOURCE")
    if not matched and not by_source:
        cursor.take("BY TARGET")
    condition = None
    if cursor.take("AND"):
        condition = _expression(cursor, cursor.until("THEN"), "WHEN")
    cursor.need("THEN")
    action, values = _action(cursor, name, matched=matched, by_source=by_source)
    return When(matched, by_source, condition, action, values)


def _action(cursor: Cursor, name: str, *, matched: bool, by_source: bool) -> tuple[str, dict[str, str] | None]:
    """Consume the action of a clause; return its word and its values."""
    begin = cursor.at
    if not matched and not by_source:
        if cursor.take("INSERT"):
            return "INSERT", None if cursor.take("*") else _inserted(cursor, name)
    elif cursor.take("DELETE"):
        return "DELETE", None
    elif cursor.take("UPDATE SET"):
        is_all = cursor.take("*")
        if not is_all:
            return "UPDATE", _assignments(cursor, name, *_WHEN)
        if matched and (cursor.token is None or cursor.sees(*_WHEN)):
            return "UPDATE", None
    cursor.at = begin
    given = cursor.until(*_WHEN)
    raise Misuse(
        f"{cursor.what}: {given.text or 'nothing'} is not supported after THEN; use UPDATE SET … or DELETE for WHEN "
        "MATCHED and WHEN NOT MATCHED BY SOURCE, and INSERT for WHEN NOT MATCHED"
    )


def _inserted(cursor: Cursor, name: str) -> dict[str, str]:
    """Consume `(column, …) VALUES (value, …)`."""
    columns = []
    for part in cursor.group("the columns of INSERT").split(",", of_names=True):
        inner = Cursor(part, cursor.what)
        columns.append(_column(cursor, inner.path("a column"), name))
        inner.end()
    cursor.need("VALUES")
    values = [_expression(cursor, part, "VALUES") for part in cursor.group("the values").split(",")]
    if len(columns) != len(values):
        raise Misuse(
            f"{cursor.what}: INSERT (…) VALUES (…) has {len(columns)} columns, but {len(values)} values; give one "
            "value for each column"
        )
    _check_once(cursor, columns)
    return dict(zip(columns, values, strict=True))


# Tables


def _create(cursor: Cursor) -> CreateTable:
    if not cursor.take("TABLE"):
        raise Misuse(f"{cursor.what}: CREATE {cursor.shown()} is not supported; CREATE supports only tables")
    if_missing = cursor.take("IF NOT EXISTS")
    table = _table(cursor, "CREATE TABLE")
    elements = cursor.group("the columns").split(",", of_names=True) if cursor.sees("(") else []
    rest = cursor.until()
    if any(rest.has(number, "AS") for number in rest.top()):
        raise Misuse(
            f"{cursor.what}: CREATE TABLE … AS SELECT is not supported; create the table with its columns and PRIMARY "
            "KEY, then INSERT INTO it, or write a frame with tx.write(frame, table, row_key=[…])"
        )
    Cursor(rest, cursor.what).end()
    if not elements:
        raise Misuse(f"{cursor.what}: the table has no columns; give columns and PRIMARY KEY")
    types, key = _elements(cursor.what, elements)
    return CreateTable(table, if_missing, types, key)


def _elements(what: str, elements: Sequence[Part]) -> tuple[dict[str, str], list[str]]:
    """Return the columns' types by name, and the columns of the row key."""
    types: dict[str, str] = {}
    keys: list[list[str]] = []
    never_null: list[str] = []
    for element in elements:
        cursor = Cursor(element, what)
        if cursor.sees("CONSTRAINT", "PRIMARY KEY", "CHECK (", "UNIQUE (", "FOREIGN KEY"):
            keys.append(_table_key(cursor))
            continue
        name = cursor.name("a column")
        if name in types:
            raise Misuse(f"{what}: two columns have the name {name!r}; rename one of them", column=name)
        types[name] = _type(cursor, name)
        while cursor.token is not None:
            if cursor.take("NOT NULL"):
                never_null.append(name)
                continue
            begin = cursor.at
            if cursor.take("CONSTRAINT"):
                cursor.name("a constraint's name")
            if not cursor.take("PRIMARY KEY"):
                cursor.at = begin
                raise Misuse(f"{what}: {cursor.shown()} of column {name!r} is not supported", column=name)
            _refuse_order(cursor)
            keys.append([name])
    if not keys:
        raise Misuse(f"{what}: the table has no row key; add PRIMARY KEY (column, …)")
    if len(keys) > 1:
        raise Misuse(f"{what}: PRIMARY KEY is given twice; name all columns of the row key in one PRIMARY KEY (…)")
    key = [_of_table(what, name, types) for name in keys[0]]
    for name in never_null:
        if name not in key:
            raise Misuse(f"{what}: column {name!r} cannot be NOT NULL, because it is not a key column", column=name)
    return types, key


def _table_key(cursor: Cursor) -> list[str]:
    """Consume `[CONSTRAINT name] PRIMARY KEY (column, …)`."""
    if cursor.take("CONSTRAINT"):
        cursor.name("a constraint's name")
    if not cursor.take("PRIMARY KEY"):
        raise Misuse(f"{cursor.what}: {cursor.shown()} is not supported; give only columns and PRIMARY KEY")
    key = []
    for part in cursor.group("the columns of PRIMARY KEY").split(",", of_names=True):
        inner = Cursor(part, cursor.what)
        key.append(inner.name("a column of PRIMARY KEY"))
        _refuse_order(inner)
        inner.end()
    cursor.end()
    return key


def _refuse_order(cursor: Cursor) -> None:
    """Raise `Misuse` for ASC or DESC in the row key, which Spark's grammar does not have either."""
    if cursor.sees("ASC", "DESC"):
        raise Misuse(
            f"{cursor.what}: {cursor.shown()} in PRIMARY KEY is not supported; to create a table with descending keys, "
            "write a frame: tx.write(frame, table, row_key=['column desc'])"
        )


def _of_table(what: str, name: str, types: dict[str, str]) -> str:
    """Return the column that PRIMARY KEY names, exactly or in another case."""
    found = name if name in types else next((each for each in types if each.lower() == name.lower()), None)
    if found is None:
        raise Misuse(
            f"{what}: PRIMARY KEY names {name!r}, which is not a column of the table{near(name, types)}", column=name
        )
    return found


def _type(cursor: Cursor, column: str) -> str:
    """Consume a type. Raises `Misuse` if it declares a length, because no column keeps a length."""
    part = cursor.until(*_OF_COLUMN, of_names=True)
    if not part.tokens:
        raise Misuse(f"{cursor.what}: column {column!r} has no type", column=column)
    for number in range(len(part.tokens)):
        for word in ("CHAR", "CHARACTER", "VARCHAR"):
            if part.has(number, f"{word} ("):
                raise Misuse(
                    f"{cursor.what}: the type {part.text} of column {column!r} is not supported, because columns have "
                    "no length; use STRING",
                    column=column,
                )
    return part.text


def _drop(cursor: Cursor) -> DropTable:
    if not cursor.take("TABLE"):
        raise Misuse(f"{cursor.what}: DROP {cursor.shown()} is not supported; DROP supports only tables")
    if_present = cursor.take("IF EXISTS")
    table = _table(cursor, "DROP TABLE")
    cursor.end()
    return DropTable(table, if_present)


def _describe(cursor: Cursor) -> DescribeTable:
    cursor.take("TABLE")
    table = _table(cursor, "DESCRIBE")
    if cursor.token is not None:
        raise Misuse(f"{cursor.what}: only DESCRIBE [TABLE] name is supported, not other forms of DESCRIBE")
    return DescribeTable(table)


def _show(cursor: Cursor) -> ShowTables:
    pattern = "*"
    is_tables = cursor.take("TABLES")
    with_like = cursor.take("LIKE")
    token = cursor.token
    if token is not None and token.kind is Kind.STRING and token.text[0] in "'\"":
        pattern, cursor.at, with_like = token.text[1:-1], cursor.at + 1, False
    if not is_tables or with_like or cursor.token is not None:
        raise Misuse(f"{cursor.what}: only SHOW TABLES [LIKE 'pattern'] is supported, not other forms of SHOW")
    return ShowTables(pattern)
