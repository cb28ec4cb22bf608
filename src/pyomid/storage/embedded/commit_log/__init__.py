"""The commit table of a folder: an append log, an index that all processes map, LMDB for what is compacted."""
