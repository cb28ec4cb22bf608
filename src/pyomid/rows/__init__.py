"""Conversion between typed rows and cells, by a table's schema in the catalog: types, row keys and values, one row at a
time or by Arrow columns. Clients and Spark both use it, so that they write the same bytes."""
