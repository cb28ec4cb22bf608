"""PySpark's names of data sources, behind a look at its version: one that is too old is refused by name."""

from __future__ import annotations

import pyspark

from pyomid.spark.registration import check_pyspark

check_pyspark(pyspark.__version__)

from pyspark.sql.datasource import (  # noqa: E402 - an older PySpark lacks some of them
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsAvailableNow
except ImportError:  # PySpark 4.1: a source knows no limits there

    class SupportsAvailableNow:  # type: ignore[no-redef]
        """Spark runs its trigger availableNow as one batch."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment, misc]

__all__ = [
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadMaxRows",
    "SupportsAvailableNow",
    "WriterCommitMessage",
]
