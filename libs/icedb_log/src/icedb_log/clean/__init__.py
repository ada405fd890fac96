"""What the janitor deletes: dead files (vacuum), orphans, leftovers, publications that are over."""
