"""What a transaction reads and writes: tables of bytes, of typed rows, and as Arrow."""
