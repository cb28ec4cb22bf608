"""PySpark over the client: data source, transactions over DataFrames, compaction, sanitising and verification jobs."""
