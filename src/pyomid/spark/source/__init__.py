"""The data source `omid`: options, partitions, and what tasks do."""
