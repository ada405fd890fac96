"""Which processes belong to a run, and how they are ended for good.

Every process of a stack carries ``ICEDB_RUN_DIR`` in its environment, also the JVMs that its workers start. A
Redis server overwrites its environment with its title, so it is known by its working directory.
"""

from pathlib import Path
from typing import Final

import psutil

RUN_DIR_VARIABLE: Final = "ICEDB_RUN_DIR"


def find_run_processes(run_dir: Path) -> tuple[psutil.Process, ...]:
    """Return the living processes of a run, ascending by process id; never the calling process."""
    own_pid = psutil.Process().pid
    return tuple(process for process in psutil.process_iter() if process.pid != own_pid and _belongs(process, run_dir))


def kill_run_processes(run_dir: Path) -> int:
    """Kill every process of a run, again and again until none is left or five seconds have gone.

    Returns:
        How many were killed.
    """
    killed_count = 0
    for _ in range(5):
        left = find_run_processes(run_dir)
        if not left:
            break
        for process in left:
            try:
                process.kill()
                killed_count += 1
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=1)
    return killed_count


def _belongs(process: psutil.Process, run_dir: Path) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if process.environ().get(RUN_DIR_VARIABLE) == str(run_dir):
            return True
        return process.name().startswith("redis-server") and Path(process.cwd()).is_relative_to(run_dir)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
