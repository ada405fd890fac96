"""Chaos: the whole local stack under load while its processes, its Redis servers, its store and its disks fail."""
