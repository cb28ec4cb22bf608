"""PySpark's data source classes, imported after a check of PySpark's version."""

from __future__ import annotations

import re
from typing import Final

import pyspark

from pyomid.errors import Misuse

PYSPARK_LEAST: Final = (4, 1)


def check_pyspark(version: str) -> None:
    """`Misuse` if PySpark is older than the oldest supported version."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < PYSPARK_LEAST:
        least = ".".join(map(str, PYSPARK_LEAST))
        raise Misuse(
            f"this is PySpark {version}, but pyomid needs {least} or later (Python data sources that write Arrow "
            f"batches): pip install 'pyspark>={least}'",
            version=version,
        )


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
except ImportError:  # PySpark 4.1 has no read limits for Python sources

    class SupportsAvailableNow:  # type: ignore[no-redef]
        """Placeholder: PySpark 4.1 runs the trigger availableNow as one batch."""

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
