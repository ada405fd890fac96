"""The guard: runs supervisord, and takes everything down when its owner goes away, however it went.

The owner holds the write end of the guard's standard input. When that pipe closes, because the owner asked
for it, ended, or was killed, the guard stops supervisord in order, then kills what is left of the run. When
supervisord itself dies, the guard cleans up after it, too. The guard lives in a session of its own, so Ctrl-C
in the terminal reaches only the owner.

    python -m icedb_local.guard RUN_DIR CONFIG
"""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from icedb_local.run_processes import kill_run_processes

STOP_WAIT_S: Final = 60
POLL_S: Final = 0.25


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
