"""What a table is: its configuration, its partitions, its figures."""
