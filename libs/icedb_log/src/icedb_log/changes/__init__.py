"""Rows and partitions that go on request or when their time has come."""
