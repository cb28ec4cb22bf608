"""Tables in a transaction: tables of bytes, typed tables, and tables as Arrow data."""
