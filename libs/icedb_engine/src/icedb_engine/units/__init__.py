"""Units of work, each what one task does, and how they travel between driver and tasks."""
