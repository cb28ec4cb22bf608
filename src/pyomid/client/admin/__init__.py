"""Administration of tables: create, alter, drop, describe; on HBase also register and import."""
