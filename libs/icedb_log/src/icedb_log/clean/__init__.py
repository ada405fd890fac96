"""What deletes: vacuum, orphan sweep, and the leases that hold both back."""
