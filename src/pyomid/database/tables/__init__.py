"""Tables in a transaction: of bytes, of typed rows, and as Arrow."""
