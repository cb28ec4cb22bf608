"""Entry point for Spark, which looks for `DefaultSource` in every top-level package whose name starts with pyspark_."""

from pyomid.spark.source.datasource import OmidDataSource as DefaultSource

__all__ = ["DefaultSource"]
