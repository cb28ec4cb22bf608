"""Transactional writes through Spark against the same writer without transactions.

The peer encodes the same rows with the same encoder and writes them with the same store calls from the same tasks; it
draws no branch, takes no lease, gathers no ids, and commits nothing. Every run writes a table of its own.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from benchmarks._report import Report
from benchmarks.spark._setting import KEY, PARTS, ROWS, Setting, setting

import pyomid
from pyomid.rows.encode import Duplicates, RowEncoder
from pyomid.rows.schema import row_key_parts, schema_of
from pyomid.spark.connections import connection
from pyomid.spark.frame_schema import WriteOptions, fields_of, prepared_table

_numbers = itertools.count()


def main() -> int:
    report = Report(f"Spark: writes, {ROWS} rows of 19 columns, local[{PARTS}]")
    with setting() as at:
        works: dict[str, Callable[[], object]] = {
            "the same writer, no transaction": lambda: write_plainly(at),
            "transaction, level table": lambda: write(at, "table", "last"),
            "transaction, level row": lambda: write(at, "row", "last"),
            "transaction, level cell": lambda: write(at, "cell", "last"),
            "level table, duplicates=error": lambda: write(at, "table", "error"),
        }
        plain, *ours = report.measure_together(works, items=ROWS, unit="rows", runs=3)
        report.ratio("level table ÷ no transaction", ours[0], plain, at_least=0.9)
        report.ratio("level row ÷ no transaction", ours[1], plain)
        report.ratio("level cell ÷ no transaction", ours[2], plain)
        report.ratio("duplicates=error ÷ last", ours[3], ours[0])
    return report.finish()


def write(at: Setting, level: str, duplicates: str) -> None:
    table = f"{level}_{next(_numbers)}"
    with at.db.begin(conflict_level=level) as tx:
        tx.write(at.flights, table, row_key=KEY, duplicates=duplicates)
    drop(at, table)


def write_plainly(at: Setting) -> None:
    conn = connection(at.url)
    table = f"plain_{next(_numbers)}"
    fields = fields_of(at.flights.schema)
    info = prepared_table(conn, table, fields, WriteOptions(row_key=row_key_parts(KEY)), None)
    task = functools.partial(plain_task, at.url, info, conn.deployment.tso.begin().start_ts)
    rows = at.flights.mapInArrow(task, "rows long").collect()
    assert sum(row["rows"] for row in rows) == at.rows
    drop(at, table)


def plain_task(url: str, info: Any, version: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    store = connection(url).deployment.store
    encoder = RowEncoder(schema_of(info), info.families, duplicates=Duplicates.LAST)
    rows = 0
    for batch in batches:
        cells = encoder.encode(batch)
        store.write_batch(info.name, version, cells)
        rows += cells.rows
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})


def drop(at: Setting, table: str) -> None:
    with pyomid.connect(at.url) as db:
        db.drop_table(table)


if __name__ == "__main__":
    sys.exit(main())
