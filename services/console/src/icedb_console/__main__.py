"""Runs the console: ``python -m icedb_console``. Needs the store alone; Redis only to wake workers for whoever asks."""

from functools import partial
from typing import Final

from icedb_service.endpoints import run_endpoints
from icedb_service.main import run_main

from icedb_console.server import Console
from icedb_console.settings import ConsoleSettings

serve: Final = partial(run_endpoints, Console)

if __name__ == "__main__":
    run_main(ConsoleSettings, "console", serve)
