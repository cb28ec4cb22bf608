"""PySpark's names of data sources, behind a look at its version: one that is too old is refused by name."""

from __future__ import annotations

import pyspark

from pyomid.spark.registration import check_pyspark

check_pyspark(pyspark.__version__)

from pyspark.sql.datasource import (  # noqa: E402 - an older PySpark lacks some of them
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

__all__ = ["DataSource", "DataSourceArrowWriter", "DataSourceReader", "InputPartition", "WriterCommitMessage"]
