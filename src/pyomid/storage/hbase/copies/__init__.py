"""Back-ups of a database over HBase, made of snapshots, and what restores their tables (decision 0078)."""
