"""Statements that differ from valid ones by a token: each is refused, or means what it means to Spark.

The oracle of a change is Spark's parser: the statement written anew from its parsed parts, every name quoted and every
expression in parentheses, must have the plan that Spark makes of the original. The oracle of a query is Spark itself,
over a view of the same rows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import ParseException, PySparkException

import pyomid.spark
from portions import first
from pyomid.errors import Misuse, OmidError
from pyomid.spark.expressions import quoted
from pyomid.spark.sql.grammar import (
    CreateTable,
    Delete,
    DescribeTable,
    DropTable,
    Insert,
    MergeInto,
    Query,
    ShowTables,
    Update,
    When,
)
from pyomid.spark.sql.statements import Statement
from pyomid.spark.sql.tokens import Kind, tokens_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

M = "MERGE INTO t AS a USING u s ON (a.k = s.k AND s.n = a.n)"
CHANGES = [
    "UPDATE t SET v = v + 1",
    "UPDATE t AS x SET x.v = CASE WHEN v > 1 THEN 2 ELSE x.v END, note = 'a, b' WHERE k = 1 OR n = 2",
    "UPDATE t x SET v = f(v, 2)[0], `set` = -1 WHERE x.note LIKE 'where' AND k IN (1, 2)",
    "DELETE FROM t",
    "DELETE FROM t AS x WHERE x.k BETWEEN 1 AND 2 -- WHERE",
    "DELETE FROM t WHERE NOT (k = 1 AND note IS NOT NULL) /* OR */ OR v = 3",
    f"{M} WHEN MATCHED THEN DELETE",
    f"{M} WHEN MATCHED AND s.v > 1 THEN UPDATE SET v = s.v, a.note = NULL WHEN MATCHED THEN UPDATE SET *",
    f"{M} WHEN NOT MATCHED BY TARGET AND s.v = 2 THEN INSERT (k, n, v) VALUES (s.k, s.n, coalesce(s.v, 1))",
    f"{M} WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE AND a.v = 1 THEN UPDATE SET v = 2",
    "MERGE INTO t USING (SELECT * FROM u WHERE k > 1) AS s ON t.k = s.k WHEN NOT MATCHED BY SOURCE THEN DELETE",
    "INSERT INTO t VALUES (1, 2, 3, 'x'), (2, 3, 4, 'y')",
    "INSERT INTO TABLE t (k, n) SELECT k, n FROM u WHERE v > 1 ORDER BY k LIMIT 3",
    "INSERT OVERWRITE t BY NAME SELECT 1 AS k, 2 AS n",
    "INSERT INTO t (k, n) WITH x AS (SELECT 1, 2) TABLE x",
    "WITH x AS (SELECT 1, 2) INSERT INTO t (k, n) SELECT * FROM x UNION ALL SELECT 1, 2",
]
TABLES = [
    "CREATE TABLE IF NOT EXISTS t (k INT, n DECIMAL(3, 1) NOT NULL, v MAP<INT, ARRAY<STRUCT<x: INT>>>, "
    "PRIMARY KEY (k, n))",
    "CREATE TABLE t (k INT NOT NULL PRIMARY KEY, `primary` STRING)",
    "CREATE TABLE t (k INT, note STRING, CONSTRAINT pk PRIMARY KEY (k))",
    "DROP TABLE IF EXISTS t",
    "DESCRIBE TABLE t",
    "SHOW TABLES LIKE 'a*'",
]
QUERIES = [
    "SELECT t.k, n + 1 AS m FROM t WHERE k > 1 AND note = 'b' ORDER BY k LIMIT 2",
    "SELECT DISTINCT a.k, b.note FROM t AS a JOIN t b ON a.k = b.n WHERE a.v >= 1 OR b.note IS NULL",
    "SELECT n, count(*) AS c, max(v) FROM t WHERE k BETWEEN 1 AND 3 GROUP BY n HAVING count(*) > 1",
    "WITH x AS (SELECT k, v FROM t WHERE k = 2), t AS (TABLE x) SELECT * FROM t, x WHERE t.k = x.k",
    "SELECT k FROM t WHERE v IN (SELECT max(v) FROM t WHERE n > 1) UNION SELECT n FROM t WHERE k = 1",
    "SELECT /*+ BROADCAST(t) */ k, CASE WHEN v > 1 THEN note END FROM t TABLESAMPLE (100 PERCENT) WHERE -k < 1",
    "FROM t |> WHERE k > 1 |> SELECT k, note -- WHERE",
]
ROWS = [(1, 1, 1, "a"), (2, 1, 2, "b"), (3, 2, None, None), (4, 2, 4, "b")]
DDL = "k int, n int, v int, note string"


@pytest.fixture(scope="module")
def db(spark: SparkSession, url: str) -> Iterator[pyomid.spark.SparkDatabase]:
    """A table `t`, and a view of the same name in Spark."""
    before = {name: spark.conf.get(name) for name in ("spark.sql.debug.maxToStringFields",)}
    spark.conf.set("spark.sql.debug.maxToStringFields", "10000")
    db = pyomid.spark.connect(spark, url)
    rows = spark.createDataFrame(ROWS, DDL)
    with db.begin() as tx:
        tx.write(rows, "t", row_key=["k", "n"])
    rows.coalesce(1).createOrReplaceTempView("t")
    yield db
    spark.catalog.dropTempView("t")
    for name, value in before.items():
        spark.conf.set(name, value)


def mutants(text: str) -> list[str]:
    """The statement with a token less, a token twice, or two neighbours swapped."""
    tokens = tokens_of(text, "SQL")
    found = []
    for number, token in enumerate(tokens):
        found.append(text[: token.start] + text[token.end :])
        found.append(f"{text[: token.end]} {token.text}{text[token.end :]}")
        for other in tokens[number + 1 : number + 2]:
            between = text[token.end : other.start]
            found.append(f"{text[: token.start]}{other.text}{between or ' '}{token.text}{text[other.end :]}")
    return [mutant for mutant in dict.fromkeys(found) if mutant != text]


# Changes and tables, by Spark's parser


class Plans:
    """The plans that Spark's parser makes."""

    def __init__(self, spark: SparkSession) -> None:
        session: Any = spark
        self._parser = session._jsparkSession.sessionState().sqlParser()

    def of(self, text: str) -> str:
        return re.sub(r"#\d+L?|_pre_\d+", "", self._parser.parsePlan(text).toString())

    def on(self, text: str) -> str:
        return str(self._parser.parsePlan(text).mergeCondition().sql())


def as_it_was_read(parsed: Any, plans: Plans, text: str) -> list[str]:
    """The statement, written from what was read out of its text, with each expression by itself. Several if Spark tells
    apart what has one meaning: an alias that is the table's name, or none."""

    def listed(names: list[str]) -> str:
        return ", ".join(map(quoted, names))

    def of_values(values: dict[str, str], equals: str = "=") -> str:
        return ", ".join(f"{quoted(name)} {equals} ({value}\n)" for name, value in values.items())

    match parsed:
        case Update(table, name, values, where):
            condition = "" if where is None else f" WHERE (({where}\n) AND true)"
            tail = f"SET {of_values(values)}{condition}"
            return [f"UPDATE {quoted(table)} {tail}", f"UPDATE {quoted(table)} AS {quoted(name)} {tail}"]
        case Delete(table, name, where):
            tail = "" if where is None else f" WHERE (({where}\n) AND true)"
            return [f"DELETE FROM {quoted(table)}{tail}", f"DELETE FROM {quoted(table)} AS {quoted(name)}{tail}"]
        case MergeInto(table, name, source, source_name, _, whens):
            assert isinstance(source, Query)
            of = source.part.text if len(source.part.tokens) == 1 else f"({source.part.text}\n)"
            clauses = " ".join(of_when(when, of_values) for when in whens)
            tail = f"ON {plans.on(text)} {clauses}"
            return [
                f"MERGE INTO {quoted(table)} {target} USING {of} {using} {tail}"
                for target in ("", f"AS {quoted(name)}")
                for using in ("", f"AS {quoted(source_name)}")
            ]
        case Insert(table, columns, by_name, overwrite, query):
            head = f"INSERT {'OVERWRITE' if overwrite else 'INTO'} TABLE {quoted(table)} "
            head += "BY NAME " if by_name else "" if columns is None else f"({listed(columns)}) "
            ctes = "" if query.ctes is None else f"{query.ctes.text}\n"
            return [f"{ctes}{head}{query.part.text}"]
        case CreateTable(table, if_missing, types, key):
            columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in types.items())
            start = f"CREATE TABLE {'IF NOT EXISTS ' if if_missing else ''}{quoted(table)} ({columns}"
            return [f"{start}, PRIMARY KEY ({listed(key)}))"]
        case DropTable(table, if_present):
            return [f"DROP TABLE {'IF EXISTS ' if if_present else ''}{quoted(table)}"]
        case DescribeTable(table):
            return [f"DESCRIBE TABLE {quoted(table)}"]
        case ShowTables(pattern):
            return [f"SHOW TABLES '{pattern}'", "SHOW TABLES"]
    raise AssertionError(parsed)


def of_when(when: When, of_values: Callable[..., str]) -> str:
    kind = "MATCHED" if when.matched else "NOT MATCHED BY SOURCE" if when.by_source else "NOT MATCHED"
    condition = "" if when.condition is None else f" AND ({when.condition}\n)"
    if when.action == "INSERT":
        values = when.values or {}
        given = ", ".join(f"({value}\n)" for value in values.values())
        what = "INSERT *" if when.values is None else f"INSERT ({', '.join(map(quoted, values))}) VALUES ({given})"
    elif when.action == "UPDATE":
        what = "UPDATE SET *" if when.values is None else f"UPDATE SET {of_values(when.values)}"
    else:
        what = "DELETE"
    return f"WHEN {kind}{condition} THEN {what}"


def fault(spark: SparkSession, plans: Plans, text: str) -> str | None:
    """What is wrong with how a change is read: None if it is refused, or Spark reads the same."""
    try:
        parsed = Statement(spark, text, None, {})._parsed
        made = [] if isinstance(parsed, Query) else [plans.of(each) for each in as_it_was_read(parsed, plans, text)]
    except (Misuse, ParseException):  # Spark parses each part when it is performed
        return None
    if isinstance(parsed, Query):
        return None
    try:
        plan = plans.of(with_where(text, parsed))
    except ParseException as error:
        return f"accepted, and Spark says {str(error).strip().splitlines()[0]}"
    if isinstance(parsed, CreateTable):
        plan, made = normal(plan), [*map(normal, made)]
    if isinstance(parsed, Update | MergeInto):
        plan = plan.replace(f"assignment('{parsed.name}.", "assignment('")
    return None if plan in made else f"\n{plan}\nwas read as\n{made[0]}"


def with_where(text: str, parsed: Any) -> str:
    """The text with its condition in parentheses: Spark takes `DELETE FROM t WHERE (k)` for an alias with columns."""
    where = parsed.where if isinstance(parsed, Update | Delete) else None
    if where is None:
        return text
    begin = text.rindex(where)
    return f"{text[:begin]}(({where}\n) AND true){text[begin + len(where) :]}"


def normal(plan: str) -> str:
    """The plan of CREATE TABLE without the name of the key, and without NOT NULL of columns, which the key implies."""
    unnamed = re.sub(r"(primarykey\w*\(.*?), [^,]*, ([^,]*), (?=Constraint)", r"\1, \2, ", plan)
    return re.sub(r"Type, (true|false),", "Type,", unnamed)


@pytest.mark.parametrize("statement", [*CHANGES, *TABLES])
def test_a_mutant_of_a_change_is_refused_or_read_as_spark_reads_it(
    spark: SparkSession, db: pyomid.spark.SparkDatabase, statement: str
) -> None:
    plans = Plans(spark)
    assert isinstance(Statement(spark, statement, None, {}), Statement)
    tried = [statement, *mutants(statement)]
    faults = {text: found for text in tried if (found := fault(spark, plans, text)) is not None}
    assert not faults, "\n".join(f"{text}: {found}" for text, found in faults.items())


@pytest.mark.long
def test_mutants_of_mutants_are_refused_or_read_as_spark_reads_them(
    spark: SparkSession, db: pyomid.spark.SparkDatabase
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chosen, plans = random.Random(seed), Plans(spark)
    for _ in range(10_000):
        once = chosen.choice(mutants(chosen.choice([*CHANGES, *TABLES])))
        with suppress(Misuse):  # of a token
            for twice in chosen.sample(mutants(once), 2):
                found = fault(spark, plans, twice)
                assert found is None, f"{twice}: {found}"


# Queries, by what Spark computes


def rows_of(query: Callable[[], Any], text: str) -> list[str] | None:
    """The rows in any order, their number if the query cuts them; None if it is refused."""
    try:
        rows = sorted(map(repr, (tuple(row) for row in query().collect())))
    except (PySparkException, OmidError):
        return None
    return [str(len(rows))] if "LIMIT" in text else rows


@pytest.mark.parametrize("statement", first(3, QUERIES))
def test_a_mutant_of_a_query_is_refused_or_has_the_rows_that_spark_computes(
    spark: SparkSession, db: pyomid.spark.SparkDatabase, statement: str
) -> None:
    check_rows(spark, db, statement, random.Random(statement).sample(mutants(statement), 12))


@pytest.mark.long
@pytest.mark.parametrize("statement", QUERIES)
def test_all_mutants_of_a_query_are_refused_or_have_the_rows_that_spark_computes(
    spark: SparkSession, db: pyomid.spark.SparkDatabase, statement: str
) -> None:
    check_rows(spark, db, statement, mutants(statement))


def check_rows(spark: SparkSession, db: pyomid.spark.SparkDatabase, statement: str, changed: list[str]) -> None:
    db.sql(statement).collect()
    assert rows_of(lambda: db.sql(statement), statement) == rows_of(lambda: spark.sql(statement), statement)
    for text in changed:
        ours = rows_of(lambda text=text: db.sql(text), text)
        assert ours is None or ours == rows_of(lambda text=text: spark.sql(text), text), text


# Tokens, by Spark's lexer

PIECES = [
    "'",
    '"',
    "`",
    "\\",
    "--",
    "\n",
    "/*",
    "*/",
    "/*+",
    "a",
    "r",
    "1",
    ".",
    "e",
    " ",
    ":",
    "-",
    "/",
    "*",
]


@pytest.mark.long
def test_tokens_end_where_sparks_lexer_ends_them(spark: SparkSession) -> None:
    """Strings, quoted names and what is hidden: there a text's meaning would change without a word."""
    session: Any = spark
    jvm = session._jvm
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chosen = random.Random(seed)
    for _ in range(1_500):
        text = "".join(chosen.choices(PIECES, k=chosen.randrange(1, 14)))
        with suppress(Misuse):
            ours = tokens_of(text.replace("(", ""), "SQL")
            stream = jvm.org.apache.spark.sql.catalyst.parser.UpperCaseCharStream(
                jvm.org.antlr.v4.runtime.CharStreams.fromString(text)
            )
            lexer = jvm.org.apache.spark.sql.catalyst.parser.SqlBaseLexer(stream)
            lexer.removeErrorListeners()
            spans = [(t.getStartIndex(), t.getStopIndex() + 1) for t in lexer.getAllTokens() if t.getChannel() == 0]
            shown = covered([(token.start, token.end) for token in ours]), covered(spans)
            assert shown[0] == shown[1], text
            strings = [(t.start, t.end) for t in ours if t.kind in (Kind.STRING, Kind.QUOTED)]
            theirs = [span for span in spans if text[span[0]] in "'\"`" or text[span[1] - 1] in "'\""]
            assert covered(strings) == covered(theirs), text


def covered(spans: list[tuple[int, int]]) -> set[int]:
    return {place for begin, end in spans for place in range(begin, end)}
