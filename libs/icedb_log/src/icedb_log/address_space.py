"""Bounds the address space of a process that runs SQL of users, and knows by which words an engine says it is full.

What an engine is told of its memory it does not always hold. Imports nothing: such a process is closed, and reads no
settings.
"""

import resource
from typing import Final

SLACK_BYTES: Final = 384 * 1024 * 1024
"""Address space beyond the engine's own memory: batches on their way, stacks of threads, the allocator's arenas."""

_OUT_OF_MEMORY: Final = (
    "out of memory",
    "bad_alloc",
    "bad allocation",
    "memoryerror",
    "failed to allocate",
    "cannot allocate",
    "max_temp_directory_size",
)


def says_out_of_memory(said: object) -> bool:
    """Whether the words of an engine, or of a process that ended, are that memory (or scratch) did not suffice.

    Only for errors that have no class for it: those of C++ and of the allocator, and what Arrow makes of DuckDB's own.
    """
    words = str(said).lower()
    return any(each in words for each in _OUT_OF_MEMORY)


def bound_address_space(memory_bytes: int) -> None:
    """Let this process have so much more address space than it has now, and write no core.

    Where the system does not say how much that is (it is Linux that does) there is no such bound: what the engine is
    told is then all that holds it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no more than this is needed here
            now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return
    hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = now_bytes + memory_bytes + SLACK_BYTES
    limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))  # another unit may need another one
