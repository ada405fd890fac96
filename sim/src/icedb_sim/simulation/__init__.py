"""Seeded schedules of everybody who works on a table."""
