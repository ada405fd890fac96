"""The ingest service: staged batches become commits."""
