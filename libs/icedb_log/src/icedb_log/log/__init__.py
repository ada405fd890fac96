"""The log: its wire, its readers, its fold."""
