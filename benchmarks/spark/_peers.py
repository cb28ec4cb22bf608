"""What pyomid's data source is measured against, each over the same rows and in the same Spark.

`Prebuilt` yields Arrow batches that lie ready in a mapped file: what is left is Spark's own cost. `Raw` scans the
same table with the same decoder and takes every stored value, without snapshot, look-ups or watermark.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from pyomid.cells import CellBatch
from pyomid.protocol.visibility import VisibleCells
from pyomid.rows.decode import RowDecoder
from pyomid.rows.schema import schema_of
from pyomid.spark.connections import connection
from pyomid.spark.frame_schema import struct_of
from pyomid.spark.source.read_task import divided
from pyomid.types import KeyRange


class Prebuilt(DataSource):
    """Option `path`: Arrow IPC files `0`, `1`, …, one a partition."""

    @classmethod
    def name(cls) -> str:
        return "bench_prebuilt"

    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        with pa.memory_map(f"{self.options['path']}/0") as file:
            return from_arrow_schema(pa.ipc.open_file(file).schema)

    def reader(self, schema: Any) -> DataSourceReader:
        return _PrebuiltReader(self.options)


class _PrebuiltReader(DataSourceReader):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._path, self._parts = options["path"], int(options["parts"])

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        file = pa.ipc.open_file(pa.memory_map(f"{self._path}/{partition.value}"))
        for index in range(file.num_record_batches):
            yield file.get_batch(index)


class Raw(DataSource):
    """Options `url`, `table`, `parts`."""

    @classmethod
    def name(cls) -> str:
        return "bench_raw"

    def schema(self) -> Any:
        schema = schema_of(connection(self.options["url"]).deployment.catalog.table(self.options["table"]))
        return struct_of(schema, [column.name for column in schema.columns])

    def reader(self, schema: Any) -> DataSourceReader:
        return _RawReader(self.options["url"], self.options["table"], int(self.options["parts"]), schema)


class _RawReader(DataSourceReader):
    def __init__(self, url: str, table: str, parts: int, schema: Any) -> None:
        self._url, self._table, self._parts, self._schema = url, table, parts, schema

    def partitions(self) -> Sequence[InputPartition]:
        store = connection(self._url).deployment.store
        return [InputPartition(tuple(part)) for part in divided(store, self._table, KeyRange(), self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        conn = connection(self._url)
        schema = schema_of(conn.deployment.catalog.table(self._table))
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        decoder = RowDecoder("peer", schema, arrow.names, arrow)
        for batch in conn.deployment.store.scan(self._table, KeyRange(*partition.value)):
            yield decoder.decode(batch, everything(batch))


def everything(batch: CellBatch) -> VisibleCells:
    """Every stored value as if it were visible: right where each row has one version."""
    has_value = batch.cell_len >= 0
    before = np.concatenate([[0], np.cumsum(has_value)])
    return VisibleCells(np.flatnonzero(has_value), before[batch.rec_cell[batch.row_rec]])


def write_prebuilt(batches: Sequence[pa.RecordBatch], path: str, parts: int) -> None:
    for part in range(parts):
        some = batches[part::parts]
        with pa.OSFile(f"{path}/{part}", "wb") as file, pa.ipc.new_file(file, some[0].schema) as writer:
            for batch in some:
                writer.write_batch(batch)
