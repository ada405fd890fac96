"""Which data files a condition can be true in, by partition values and statistics."""
