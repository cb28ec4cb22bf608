"""The Python data source `omid`: `spark.read.format("omid")` and `df.write.format("omid")`.

Spark creates a `DataSource` once per `load()`, pickles it, and calls its parts in separate processes, so:

    read     the source draws the start timestamp when it is created, and all partitions use it (S5); `load()` and each
             task share a lease on it, which expires, because Spark does not report the end of a read
    write    the start timestamp belongs to a `LargeTransaction`, as in `SparkDatabase.begin`, under its own lease until
             `commit` or `abort`; every process that Spark calls continues the transaction. Each task attempt writes a
             branch and returns it in its message; `commit` decides once; `abort` looks up the outcome and never undoes
             a commit (S2)

Filters are not pushed down: if a DataFrame is used twice, Spark applies the filters of one use to the other (0117). Key
ranges and comparisons (`where`) are given as options.

Spark imports this module whenever it looks for data sources, so the other modules are imported at the first use.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Final

import pyspark

from pyomid.errors import Misuse
from pyomid.spark import spark_extra
from pyomid.spark.coded_errors import coded_errors
from pyomid.spark.source.options import FORMAT, Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyomid.spark.source.planning import OmidReader
    from pyomid.spark.source.stream_reader import OmidStreamReader
    from pyomid.spark.source.writer import OmidStreamWriter, OmidWriter

PYSPARK_LEAST: Final = (4, 1)


def check_pyspark(version: str) -> None:
    """Raise `Misuse` if PySpark is older than the oldest supported version."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < PYSPARK_LEAST:
        least = ".".join(map(str, PYSPARK_LEAST))
        raise Misuse(
            f"PySpark {version} is too old: pyomid needs {least} or later, whose Python data sources write Arrow "
            f"batches; run pip install 'pyspark>={least}'",
            version=version,
        )


check_pyspark(pyspark.__version__)

from pyspark.sql.datasource import DataSource  # noqa: E402 - an older PySpark lacks it


class OmidDataSource(DataSource):
    """The data source. `pyomid.spark.connect` registers it, or Spark finds it as `pyspark_omid.DefaultSource`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with coded_errors(), spark_extra():
            from pyomid.spark.source.planning import Planner

            self._planner = Planner(Options(options))

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def __getstate__(self) -> dict[str, Any]:
        with coded_errors():
            self._planner.prepare_to_leave()
        return self.__dict__

    def schema(self) -> StructType:
        with coded_errors():
            return self._planner.schema()

    def reader(self, schema: StructType) -> OmidReader:
        with coded_errors():
            return self._planner.reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> OmidWriter:
        with coded_errors():
            return self._planner.writer(schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> OmidStreamReader:
        with coded_errors():
            return self._planner.stream_reader(schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> OmidStreamWriter:
        with coded_errors():
            return self._planner.stream_writer(schema, overwrite=overwrite)
