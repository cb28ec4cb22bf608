"""Conversion between typed rows and cells, by a table's schema in the catalog: types, row keys, values; one row at a
time, or by Arrow columns. Used by clients and by Spark, so that all write the same bytes."""
