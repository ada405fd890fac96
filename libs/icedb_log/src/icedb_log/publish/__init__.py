"""Publications: what engines that do not read the log see of a table, a chain of states of which none ever changes."""
