"""The insert query of a table: what it may say, and what it returns."""
