"""What a table is: its configuration and types, its partitions, and which data files a condition leaves. No log."""
