"""For every test: ids that are the same in each process, so that two may share the tests (pytest-xdist)."""

import re

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes (a gzip header holds the time) and fresh ids after their argument; pytest numbers equal names."""
    if isinstance(val, bytes):
        return argname
    if isinstance(val, str) and _UUID.search(val):
        return _UUID.sub("id", val)
    return None
