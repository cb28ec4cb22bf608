"""What is read out of a statement's text, and what is refused because no rule uses it. No Spark runs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyomid.errors import Misuse
from pyomid.spark.sql.grammar import Query, parsed
from pyomid.spark.sql.literals import filled
from pyomid.spark.sql.tokens import tokens_of

pytestmark = pytest.mark.fast


def read(text: str) -> Any:
    return parsed(text, "SQL")[0]


def test_tokens_end_where_sparks_end() -> None:
    text = r"""SELECT 'it''s \' one', r'\', "a""b", `x``y`.from, 1.5e3d, 1.WHERE, .5, a.5, x::int, file://b-1/c--d
               -- a \
    still a comment
               /* one /* two */ one /*+ no hint */ {f} ${c} t-- no newline"""
    found = [token.text for token in tokens_of(text, "SQL")]
    assert found == [
        "SELECT", r"'it''s \' one'", ",", "r'\\'", ",", '"a""b"', ",", "`x``y`", ".", "from", ",", "1.5e3d",
        ",", "1", ".", "WHERE", ",", ".5", ",", "a", ".5", ",", "x", ":", ":", "int", ",", "file://b-1/c--d", "{f}",
        "$", "{", "c", "}", "t",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["'a", 'SELECT "a', "`a", "/* a /* b */", "(", "a)", "[(])", "f(]"])
def test_what_is_not_closed_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="cannot be parsed"):
        tokens_of(text, "SQL")


def test_an_expression_ends_before_the_next_clause_and_not_inside_of_something() -> None:
    update = read(
        "UPDATE t AS x SET x.a = CASE WHEN b THEN 'where' ELSE (SELECTED) END, `where` == f(a, b) WHERE c = 1"
    )
    assert (update.table, update.name) == ("t", "x")
    assert update.values == {"a": "CASE WHEN b THEN 'where' ELSE (SELECTED) END", "where": "f(a, b)"}
    assert update.where == "c = 1"
    assert read("DELETE FROM t `where` WHERE values = 1 AND end IN (values)").where == "values = 1 AND end IN (values)"
    merge = read("""MERGE INTO t USING u AS s ON (t.k = s.k AND (s.`and` = t.AND))
                    WHEN MATCHED AND CASE WHEN s.a THEN t.b END THEN UPDATE SET t.values = s.values
                    WHEN NOT MATCHED BY TARGET THEN INSERT (k, t.values) VALUES (s.k, f(s.a, s.b))
                    WHEN ! MATCHED BY SOURCE THEN DELETE""")
    assert merge.on == ["k", "and"]
    assert [(when.action, when.condition, when.values) for when in merge.whens] == [
        ("UPDATE", "CASE WHEN s.a THEN t.b END", {"values": "s.values"}),
        ("INSERT", None, {"k": "s.k", "values": "f(s.a, s.b)"}),
        ("DELETE", None, None),
    ]


def test_an_insert_knows_columns_from_a_query_in_parentheses() -> None:
    for text, columns, query in [
        ("INSERT INTO t (case, values) VALUES (1)", ["case", "values"], "VALUES (1)"),
        ("INSERT INTO t (SELECT k FROM u)", None, "(SELECT k FROM u)"),
        ("INSERT INTO t (k) (SELECT k FROM u)", ["k"], "(SELECT k FROM u)"),
        ("INSERT INTO t (TABLE u) UNION TABLE v", None, "(TABLE u) UNION TABLE v"),
        ("INSERT OVERWRITE TABLE t BY name SELECT 1 AS k;", None, "SELECT 1 AS k"),
    ]:
        found = read(text)
        assert (found.table, found.columns, found.query.part.text) == ("t", columns, query), text
    found = read("WITH insert AS (SELECT 1), x (a) (TABLE u) INSERT INTO t TABLE x")
    assert found.query.ctes.text == "WITH insert AS (SELECT 1), x (a) (TABLE u)"
    assert isinstance(read("WITH insert AS (SELECT 1) SELECT * FROM insert"), Query)


def test_a_table_has_its_types_and_its_key() -> None:
    text = """CREATE TABLE IF NOT EXISTS t (a MAP<INT, STRUCT<x: INT, y: DECIMAL(3, 1)>>, comment STRING NOT NULL,
              case INT, `b c` INT, CONSTRAINT pk PRIMARY KEY (COMMENT, `b c`))"""
    made = read(text)
    assert made.if_missing
    assert made.types == {
        "a": "MAP<INT, STRUCT<x: INT, y: DECIMAL(3, 1)>>",
        "comment": "STRING",
        "case": "INT",
        "b c": "INT",
    }
    assert made.key == ["comment", "b c"]
    assert read("CREATE TABLE t (k INT CONSTRAINT pk PRIMARY KEY NOT NULL, v INT)").key == ["k"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("DELETE FROM t {# WHERE k = 1 #}", "{ is not supported"),
        ("DELETE FROM t /*+ WHERE k = 1 */", r"/\*\+ WHERE is not supported|/\*\+ is not"),
        ("DELETE FROM t WHERE", "an expression is missing"),
        ("DELETE FROM t WHERE a WHERE b", "another clause"),
        ("DELETE FROM t LIMIT 1", "1 is not supported"),
        ("DELETE FROM t WHERE (FROM u) = 1", "subquery"),
        ("DELETE FROM t WHERE EXISTS (TABLE u)", "subquery"),
        ("DELETE FROM t WHERE k IN (WITH x AS (VALUES 1) TABLE x)", "subquery"),
        ("DELETE FROM t WHERE k = (MAP (k) USING 'cat' FROM u)", "subquery"),
        ("UPDATE t SET a = 1,", "a column is missing before the end"),
        ("UPDATE t SET a = 1 b = 2", None),
        ("UPDATE t SET a = DEFAULT", "DEFAULT is not supported"),
        ("UPDATE t SET a = {f}", "is allowed only in place of a table name"),
        ("WITH x AS (SELECT 1) DELETE FROM t", "WITH before DELETE"),
        ("INSERT INTO t", "write a query here"),
        ("INSERT INTO t (k) BY NAME SELECT 1", None),
        ("INSERT INTO t PARTITION (k = 1) SELECT 1", "PARTITION is not supported"),
        ("INSERT INTO t REPLACE USING (k) SELECT 1", "REPLACE USING is not supported"),
        ("INSERT INTO t WITH ('a' = 'b') SELECT 1", "WITH is not supported"),
        ("INSERT WITH SCHEMA EVOLUTION INTO t SELECT 1", "INTO is missing before WITH SCHEMA"),
        ("MERGE INTO t USING s ON t.k = s.k", "WHEN is missing"),
        ("MERGE INTO t USING s ON t.k = s.k OR true WHEN MATCHED THEN DELETE", "columns of the same name"),
        ("MERGE INTO t USING s ON t.k <=> s.k WHEN MATCHED THEN DELETE", "columns of the same name"),
        ("MERGE INTO t USING s ON t.k = t.k WHEN MATCHED THEN DELETE", "columns of the same name"),
        ("MERGE INTO t USING (SELECT 1) ON t.k = s.k WHEN MATCHED THEN DELETE", "different names"),
        ("MERGE INTO t USING s ON t.k = s.k WHEN MATCHED THEN UPDATE *", "UPDATE . is not supported"),
        ("MERGE INTO t USING s ON t.k = s.k WHEN MATCHED THEN DELETE WHERE s.v > 1", "WHEN is missing before WHERE"),
        ("MERGE INTO t USING s ON t.k = s.k WHEN NOT MATCHED THEN INSERT (k) VALUES (1) WHERE s.v", "WHEN is missing"),
        ("MERGE INTO t USING s ON t.k = s.k WHEN NOT MATCHED THEN INSERT (k) VALUES (s.k), (1)", "WHEN is missing"),
        ("CREATE TABLE t (k INT PRIMARY KEY, v VARCHAR(3))", "no length"),
        ("CREATE TABLE t (k INT PRIMARY KEY, v ARRAY<CHAR (3)>)", "no length"),
        ("CREATE TABLE t (k INT PRIMARY KEY DESC)", "DESC in PRIMARY KEY"),
        ("CREATE TABLE t (k INT, PRIMARY KEY (k ASC))", "ASC in PRIMARY KEY"),
        ("CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED)", "NOT ENFORCED is not supported"),
        ("CREATE TABLE t (k INT PRIMARY KEY RELY)", "RELY of column 'k'"),
        ("CREATE TABLE t (k INT PRIMARY KEY, v INT PRIMARY KEY)", "PRIMARY KEY is given twice"),
        ("CREATE TABLE t (k INT PRIMARY KEY, v INT COMMENT 'x')", "COMMENT of column 'v'"),
        ("CREATE TABLE t (k INT PRIMARY KEY, v INT CHECK (v > 1))", "CHECK of column 'v'"),
        ("CREATE TABLE t (k INT PRIMARY KEY, v INT GENERATED ALWAYS AS (k))", "GENERATED ALWAYS of column 'v'"),
        ("CREATE TABLE t (k INT PRIMARY KEY, UNIQUE (k))", "UNIQUE is not supported"),
        ("CREATE TABLE t (k INT PRIMARY KEY, CHECK (k > 1))", "CHECK is not supported"),
        ("CREATE TABLE t (k INT PRIMARY KEY,)", "a column is missing"),
        ("CREATE TABLE t (k PRIMARY KEY)", "has no type"),
        ("CREATE TABLE t (k INT PRIMARY KEY) COMMENT 'x'", "COMMENT is not supported"),
        ("CREATE OR REPLACE TABLE t (k INT PRIMARY KEY)", "OR REPLACE is not supported"),
        ("CREATE TEMPORARY TABLE t (k INT PRIMARY KEY)", "TEMPORARY TABLE is not supported"),
        ("DROP TABLE t PURGE", "PURGE is not supported"),
        ("DROP TABLE t, u", ", is not supported"),
        ("DESCRIBE DATABASE t", "only DESCRIBE"),
        ("DESCRIBE EXTENDED t", "only DESCRIBE"),
        ("DESCRIBE t k", "only DESCRIBE"),
        ("SHOW TABLES IN x", "only SHOW TABLES"),
        ("SHOW TABLES LIKE", "only SHOW TABLES"),
        ("SHOW TABLES 'a' 'b'", "only SHOW TABLES"),
        ("SHOW DATABASES", "only SHOW TABLES"),
    ],
)  # fmt: skip
def test_what_no_rule_uses_is_refused(text: str, words: str | None) -> None:
    """None: its part is left to Spark, which refuses it."""
    if words is None:
        read(text)
        return
    with pytest.raises(Misuse, match=words):
        read(text)


def test_parameters_are_filled_in_where_a_value_stands() -> None:
    import numpy as np

    args = {"n": np.int64(5), "m": -7, "x": True}
    text = "SELECT v:n.a, c::n, ':n', `a:n`, 1-:m, INTERVAL :n DAY, INTERVAL :m DAY -- :y\n FROM t WHERE:x /* :z */"
    made = (
        "SELECT v:n.a, c::n, ':n', `a:n`, 1- (-7) , INTERVAL 5 DAY, INTERVAL -7 DAY -- :y\n FROM t WHERE TRUE /* :z */"
    )
    assert " ".join(filled(text, args, "SQL").split()) == " ".join(made.split())
    for bad in ({1: 2, "n": 1}, {"n": np.datetime64("2013-01-01")}, {"n": 10**38}):
        with pytest.raises(Misuse):
            filled("SELECT :n", bad, "SQL")
