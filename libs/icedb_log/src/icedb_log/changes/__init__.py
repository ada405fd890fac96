"""What somebody asks of a table: rows deleted or rewritten, partitions removed, settings changed."""
