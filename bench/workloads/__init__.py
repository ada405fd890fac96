"""One module a workload."""
