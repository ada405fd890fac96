"""For tests and benchmarks of ingest: a front end in this process."""
