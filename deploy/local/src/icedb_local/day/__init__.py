"""A day: a set of tables from midnight to midnight, in minutes or in real hours, with every row accounted for."""
