"""Fakes that stand beside the real ones, and the acceptance suites that both pass."""
