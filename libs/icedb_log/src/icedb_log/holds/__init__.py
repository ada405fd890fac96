"""What keeps dead objects for a while, or a whole table: guards, leases, tags, erasures that have not ended."""
