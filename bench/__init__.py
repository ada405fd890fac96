"""Benchmarks against peers: one run, the same data, alternating."""
