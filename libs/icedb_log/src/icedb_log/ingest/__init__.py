"""From accepted batches to one commit: staging, flush, quarantine, back-pressure."""
