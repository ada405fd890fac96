"""What keeps dead objects for a while, or a whole table: guards, leases, pins, erasures that have not ended."""
