"""Following a table: each appended row once, for readers that remember how far they got, such as a stream."""
