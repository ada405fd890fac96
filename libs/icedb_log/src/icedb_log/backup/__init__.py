"""Copies of a warehouse in another place: a state that was there, whole, and whole again after each run."""
