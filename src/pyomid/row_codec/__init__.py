"""Typed rows to cells and back, by a table's schema in the catalog: types, row keys, values; a row at a time and by
Arrow columns. It stands below clients and Spark, which all write the same bytes."""
