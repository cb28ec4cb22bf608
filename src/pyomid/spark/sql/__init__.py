"""SQL statements: tokens, the grammar of the supported statements, parameters, and execution in a transaction."""
