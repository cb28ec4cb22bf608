"""Rows of DataFrames to cells and back: types, row keys, values, by columns."""
