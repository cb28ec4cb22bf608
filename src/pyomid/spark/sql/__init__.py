"""SQL statements: tokens, the grammar of what pyomid performs, parameters, and their performance in a transaction."""
