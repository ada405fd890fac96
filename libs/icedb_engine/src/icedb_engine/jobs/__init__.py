"""Drivers of jobs: they cut a job into units of work, have a runner run them, and unite what the units made."""
