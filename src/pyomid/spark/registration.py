"""Making Spark know the data source, and Spark's workers find this environment."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REGISTERED: Final = "_pyomid_registered"


def register(spark: SparkSession) -> None:
    """Makes `format("omid")` known to this session. Idempotent. Not needed where pyomid is installed in the
    environment of the driver's Python: there Spark finds it by itself (not through sys.path alone)."""
    from pyomid.spark.datasource import OmidDataSource

    if not getattr(spark, _REGISTERED, False):
        spark.dataSource.register(OmidDataSource)
        setattr(spark, _REGISTERED, True)


def use_this_python() -> None:
    """Makes Spark's workers run this interpreter, with its packages. Call it before the session is made."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
