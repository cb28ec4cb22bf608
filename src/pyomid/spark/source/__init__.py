"""The data source `omid`: its options, its partitions, and the work of its tasks."""
