"""Frames of Polars, written and read as Arrow."""

from __future__ import annotations

import polars as pl
import pytest

from pyomid.database.database import Database
from pyomid.errors import MisuseType

pytestmark = pytest.mark.fast


@pytest.fixture
def typed(db: Database) -> Database:
    db.set_schema("t", {"id": int, "name": str, "raw": bytes}, row_key="id")
    return db


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Enum(["a"])])
def test_a_frame_is_written_as_it_comes_and_read_again(typed: Database, kind: pl.DataType) -> None:
    columns = {"id": [1, 2], "name": ["a", None], "raw": [b"x", None]}
    frame = pl.DataFrame(columns).with_columns(name=pl.col("name").cast(kind))
    with typed.begin() as tx:
        assert tx.table("t").write_arrow(frame) == 2
        assert pl.from_arrow(tx.table("t").to_arrow()).equals(pl.DataFrame(columns))


def test_a_table_without_schema_takes_bytes_of_a_frame(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        assert table.write_arrow(pl.DataFrame({"key": [b"b"], "f:x": [b"2"]})) == 1
        assert table.get(b"b") == {b"f:x": b"2"}


def test_a_table_without_rows_is_a_frame_without_rows(typed: Database) -> None:
    with typed.snapshot() as tx:
        found = pl.from_arrow(tx.table("t").to_arrow())
    assert found.equals(pl.DataFrame(schema={"id": pl.Int64, "name": pl.String, "raw": pl.Binary}))


def test_places_in_memory_are_not_written_for_objects_of_polars(typed: Database) -> None:
    frame = pl.DataFrame({"id": [1], "raw": pl.Series([object()], dtype=pl.Object)})
    with typed.begin() as tx, pytest.raises(MisuseType, match="'raw'"):
        tx.table("t").write_arrow(frame)


def test_a_series_and_a_number_that_arrow_lacks_are_no_data(typed: Database) -> None:
    with typed.begin() as tx:
        for data in (pl.Series([1]), pl.DataFrame({"id": pl.Series([1], dtype=pl.Int128)})):
            with pytest.raises(MisuseType, match="Arrow"):
                tx.table("t").write_arrow(data)
