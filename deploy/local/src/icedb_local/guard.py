"""The guard: runs supervisord, and takes everything down when its owner goes away, however it went.

The owner holds the write end of the guard's standard input. When that pipe closes, because the owner asked
for it, ended, or was killed, the guard stops supervisord in order, then kills what is left of the run. When
supervisord itself dies, the guard cleans up after it, too. The guard lives in a session of its own, so Ctrl-C
in the terminal reaches only the owner.

    python -m icedb_local.guard RUN_DIR CONFIG

Every process of a run carries ``ICEDB_RUN_DIR`` in its environment, also the JVMs that its workers start. A
Redis server overwrites its environment with its title, so it is known by its working directory.
"""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

RUN_DIR_VARIABLE: Final = "ICEDB_RUN_DIR"
STOP_WAIT_S: Final = 60
POLL_S: Final = 0.25
KILL_ROUNDS: Final = 60
"""Of a second each: on a busy machine also what is killed takes a while to go."""


def find_run_processes(run_dir: Path) -> tuple[psutil.Process, ...]:
    """Return the living processes of a run, ascending by process id; never the calling process."""
    own_pid = psutil.Process().pid
    return tuple(process for process in psutil.process_iter() if process.pid != own_pid and _belongs(process, run_dir))


def kill_run_processes(run_dir: Path) -> int:
    """Kill every process of a run, again and again until none is left or a minute has gone.

    Returns:
        How many were killed.
    """
    killed_count = 0
    for _ in range(KILL_ROUNDS):
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


def main() -> int:
    """Run until standard input closes or supervisord ends; return supervisord's exit status."""
    run_dir, config = Path(sys.argv[1]), Path(sys.argv[2])
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    is_asked_to_stop = False

    def ask_to_stop(*_: object) -> None:
        nonlocal is_asked_to_stop
        is_asked_to_stop = True

    signal.signal(signal.SIGTERM, ask_to_stop)
    supervisord = subprocess.Popen(
        [sys.executable, "-m", "supervisor.supervisord", "--configuration", str(config)],
        stdin=subprocess.DEVNULL,
        cwd=run_dir,
    )
    try:
        while supervisord.poll() is None and not is_asked_to_stop:
            readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
            if readable and not os.read(sys.stdin.fileno(), 1):
                break
        if supervisord.poll() is None:
            supervisord.terminate()
        try:
            return supervisord.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            return 1
    finally:
        kill_run_processes(run_dir)


if __name__ == "__main__":
    sys.exit(main())
