"""What callers say in Spark's words about rows: conditions, assignments, clauses of a merge."""
