"""Object stores: one protocol, and S3, a directory; what a store has to keep is probed."""
