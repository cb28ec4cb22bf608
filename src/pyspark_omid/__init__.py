"""Found by Spark itself: it looks for `DefaultSource` in every top-level package whose name begins with pyspark_."""

from pyomid.spark.source.datasource import OmidDataSource as DefaultSource

__all__ = ["DefaultSource"]
