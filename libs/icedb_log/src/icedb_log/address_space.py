"""Bounds the address space of a process that runs SQL of users: what its engine is told it does not always hold.

Imports nothing: such a process is closed, and reads no settings.
"""

import resource
from typing import Final

SLACK_BYTES: Final = 384 * 1024 * 1024
"""Address space beyond the engine's own memory: batches on their way, stacks of threads, the allocator's arenas."""


def bound_address_space(memory_bytes: int) -> None:
    """Let this process have so much more address space than it has now, and write no core."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no more than this is needed here
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = now_bytes + memory_bytes + SLACK_BYTES
    limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))  # another unit may need another one
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
