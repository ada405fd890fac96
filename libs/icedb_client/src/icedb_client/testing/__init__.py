"""Helpers for tests: no part of the client."""
