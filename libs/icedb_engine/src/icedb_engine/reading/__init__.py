"""From staged batches to typed rows: decoding, checks, types, what is rejected and why."""
