"""What callers pass in Spark's terms: conditions, assignments, clauses of a merge, frames."""
