"""The janitor: what is tombstoned and past its grace period is deleted. Nobody else deletes (J6)."""
