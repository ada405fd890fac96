"""How servers on an event loop read tables: shared reads, and a bounded number of threads."""
