"""Names as Spark's programs give them: alone and in lists, with commas, in another case than the table's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from spark_frames import load, rows

import pyomid
import pyomid.spark
from pyomid.errors import Misuse, MisuseType
from pyomid.types import RowKeyPart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COMMA = "one, two"


def write(spark: SparkSession, url: str, table: str, select: str, **how: Any) -> None:
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(spark.sql(select), table, **how)


@pytest.fixture(scope="module")
def cases(spark: SparkSession, url: str) -> None:
    write(spark, url, "cases", "SELECT 1 AS id, 1 AS col1, named_struct('f', 1) AS x", row_key="id")


@pytest.fixture
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


def test_one_name_alone_is_one_column_of_the_changes(spark: SparkSession, url: str, cases: None) -> None:
    db = pyomid.spark.connect(spark, url)
    found = db.changes("cases", starting=1, columns="col1")
    assert found.columns[0] == "col1"
    with pytest.raises(MisuseType, match="a column name must be a string, not 1"):
        db.changes("cases", starting=1, columns=[1])  # type: ignore[list-item]
    bad: dict[str, dict[str, Any]] = {
        r"row key \[1\]: 1 is not a column name": {"row_key": [1]},
        "row key 1: 1 is not a column name": {"row_key": 1},
        "mapping must be a mapping from column names to family:qualifier, not 'x=f:q'": {
            "row_key": "id",
            "mapping": "x=f:q",
        },
    }
    for words, how in bad.items():
        with pytest.raises(MisuseType, match=words):
            write(spark, url, "unmade", "SELECT 1 AS id, 2 AS x", **how)


def test_a_column_with_a_comma_can_be_chosen_everywhere(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    key = [RowKeyPart("a desc"), RowKeyPart("b, c", True)]
    with db.begin() as tx:
        tx.write(spark.sql(f"SELECT 1 AS `a desc`, 2 AS `b, c`, 3 AS `{COMMA}`, 4 AS z"), "commas", row_key=key)
        assert rows(tx.read("commas", columns=[COMMA])) == [(3,)]
        assert rows(tx.read("commas", columns=COMMA, where="z = 4")) == [(3,)]
        assert rows(tx.read("commas", row_key=key)) == [(1, 2, 3, 4)]
    assert db.changes("commas", starting=1, columns=[COMMA]).columns[0] == COMMA
    assert rows(load(spark, url, "commas", columns=f'["{COMMA}", "z"]')) == [(3, 4)]
    assert rows(load(spark, url, "commas", rowKey='["a desc asc", "b, c desc"]')) == [(1, 2, 3, 4)]
    for text in ('["a', "[1]"):
        with pytest.raises(Exception, match="is not a JSON array of names"):
            load(spark, url, "commas", columns=text)


def by_df_write(spark: SparkSession, url: str, table: str, select: str, **options: str) -> None:
    spark.sql(select).write.format("omid").mode("append").options(url=url, table=table, **options).save()


@pytest.mark.parametrize(
    ("table", "columns", "words"),
    [
        ("cases", "20 AS COL1", "column 'COL1' of the frame and 'col1' differ only by case"),
        ("new", "20 AS col1, 3 AS COL1", "column 'COL1' of the frame and 'col1' differ only by case"),
        (
            "new",
            "array(named_struct('f', 1, 'F', 2)) AS y",
            "field of 'y' 'F' of the frame and 'f' differ only by case",
        ),
    ],
)
def test_no_frame_adds_a_name_that_differs_by_case_only(
    spark: SparkSession, url: str, cases: None, table: str, columns: str, words: str
) -> None:
    select = f"SELECT 2 AS id, {columns}"
    with pytest.raises(Misuse, match=words):
        write(spark, url, table, select, row_key="id", merge_schema=True)
    with pytest.raises(Exception, match=words):
        by_df_write(spark, url, table, select, rowKey="id", mergeSchema="true")
    assert load(spark, url, "cases").columns == ["id", "col1", "x"]
    with pyomid.connect(url) as db:
        assert "new" not in db.tables()


def test_names_are_two_where_spark_tells_them_apart(spark: SparkSession, url: str, case_sensitive: None) -> None:
    db = pyomid.spark.connect(spark, url)
    write(spark, url, "two_names", "SELECT 1 AS id, 1 AS col1", row_key="id")
    write(spark, url, "two_names", "SELECT 1 AS id, 20 AS COL1", merge_schema=True)
    with db.begin() as tx:
        tx.update("two_names", "COL1 = 20 AND col1 = 1", {"COL1": "COL1 + 1"})
        assert rows(tx.read("two_names", columns=["COL1"], where="col1 = 1")) == [(21,)]
        with pytest.raises(Misuse, match="no column 'Col1'"):
            tx.read("two_names", columns=["Col1"])
    spark.conf.unset("spark.sql.caseSensitive")
    with db.begin() as tx:
        assert rows(tx.read("two_names", columns=["COL1"], where="id = 1")) == [(21,)]
        with pytest.raises(Misuse, match="several names that differ from 'Col1' only by case: col1, COL1"):
            tx.read("two_names", columns=["Col1"])
        with pytest.raises(Misuse, match=r"its condition cannot be resolved.*ambiguous"):
            tx.read("two_names", where="col1 = 1")


def test_statements_find_columns_whatever_their_case(spark: SparkSession, url: str) -> None:
    """As Spark itself, unless it is told to tell them apart."""
    db = pyomid.spark.connect(spark, url)
    write(spark, url, "any_case", "SELECT id, id AS col1, 'x' AS note FROM range(1, 5)", row_key="id")
    with db.begin() as tx:
        for where in (None, "COL1 > 3", "ID > 3 AND Col1 > 0"):
            found = tx.read("any_case", columns=["COL1"], where=where)
            assert (found.columns, rows(found)[-1]) == (["col1"], (4,))
        tx.update("any_case", "COL1 = 1", {"NOTE": "concat(Note, 'y')"})
        some = tx.read("any_case").select("id", "note").schema
        assert tx.read("any_case", columns="note", schema=some).columns == ["note"]
        with pytest.raises(Misuse, match="the read of 'any_case': the table has no column 'col1'; known: id, note"):
            tx.read("any_case", columns="col1", schema=some)
        tx.delete("any_case", where="COL1 = 2")
        source = spark.sql("SELECT 3L AS Id, 30L AS COL1, 'z' AS NOTE UNION ALL SELECT 5L, 50L, 'w'")
        merge = tx.merge(source, "any_case", on=["ID"])
        merge.whenMatched("source.COL1 = 30").update({"Col1": "source.Col1"}).whenNotMatched().insertAll().merge()
        tx.merge(source.where("Id = 5"), "any_case", on="iD").whenMatched().updateAll().merge()
    expected = [(1, 1, "xy"), (3, 30, "x"), (4, 4, "x"), (5, 50, "w")]
    assert rows(load(spark, url, "any_case")) == expected
    assert rows(load(spark, url, "any_case", columns="COL1", where="ID = 5 and COL1 = 50")) == [(50,)]
    for bad in (lambda tx: tx.update("any_case", None, "note = 'z'"),
                lambda tx: tx.merge(source, "any_case", "id").whenMatched().update("note = 'z'")):  # fmt: skip
        with pytest.raises(MisuseType, match="is not a mapping from columns to values"):
            with db.begin() as tx:
                bad(tx)


def test_fields_of_structs_are_taken_by_name(spark: SparkSession, url: str) -> None:
    """Also inside of arrays and maps."""
    first, second = "named_struct('a', 1, 'b', 2)", "named_struct('b', 20, 'a', 10)"
    select = "SELECT {id} AS id, {of} AS s, array({of}) AS many, map('k', {of}) AS named"
    write(spark, url, "structs", select.format(id=1, of=first), row_key="id")
    write(spark, url, "structs", select.format(id=2, of=second))
    by_df_write(spark, url, "structs", select.format(id=3, of=second))
    found = load(spark, url, "structs").selectExpr("id", "s.a", "s.b", "many[0].a", "named['k'].b")
    assert rows(found) == [(1, 1, 2, 1, 2), (2, 10, 20, 10, 20), (3, 10, 20, 10, 20)]
    with pytest.raises(MisuseType, match="the order of the fields differs, and a cast would swap their values"):
        with pyomid.spark.connect(spark, url).begin() as tx:
            tx.update("structs", "id = 1", {"s": second})
    with pytest.raises(MisuseType, match="a cast matches the fields of structs by position"):
        write(spark, url, "structs", "SELECT 4 AS id, named_struct('a', 1, 'c', 2) AS s")


@pytest.mark.parametrize("around", ["{}", "array({})", "map('k', {})", "array(named_struct('g', map(1, {})))"])
def test_a_collation_inside_of_a_type_is_refused(spark: SparkSession, url: str, cases: None, around: str) -> None:
    inner = around.format("named_struct('f', 'Ab' COLLATE UTF8_LCASE)")
    words = "column 'y': type 'string collate UTF8_LCASE' cannot be stored"
    with pytest.raises(MisuseType, match=words):
        write(spark, url, "collated", f"SELECT 1 AS id, {inner} AS y", row_key="id")
    with pytest.raises(Exception, match=words):
        by_df_write(spark, url, "collated", f"SELECT 1 AS id, {inner} AS y", rowKey="id")
    with pytest.raises(MisuseType, match=words):
        pyomid.spark.connect(spark, url).alter_columns("cases", add=spark.sql(f"SELECT {inner} AS y").schema)
