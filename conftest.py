"""For every test: ids that are the same in each process, so that two may share the tests (pytest-xdist), and Ctrl-C.

A shell starts what it puts in the background with SIGINT ignored, and every process below inherits that; programs that
tests interrupt must hear of it all the same.
"""

import re
import signal

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def pytest_configure() -> None:
    """Let this process, and so those that tests start, be interrupted, also if tests run in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes (a gzip header holds the time) and fresh ids after their argument; pytest numbers equal names."""
    if isinstance(val, bytes):
        return argname
    if isinstance(val, str) and _UUID.search(val):
        return _UUID.sub("id", val)
    return None
