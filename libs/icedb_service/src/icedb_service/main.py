"""How a service's process begins and ends: settings, logs, exit codes, no traceback for what a user can correct."""

import sys
import threading
from collections.abc import Callable
from typing import Final, NoReturn

from icedb_log.errors import IceDBError, InvalidRequest, UnsupportedFormat
from icedb_log.names import Component

from icedb_service.logs import configure_logging
from icedb_service.settings import S, load_settings

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2

_LAST_MOMENT_S: Final = 1.0


def find_hanging_threads() -> list[str]:
    """Return the names of threads that would keep this process; waits a second each for those that are about to end."""
    found = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    for thread in found:
        thread.join(_LAST_MOMENT_S)
    return [thread.name for thread in found if thread.is_alive()]


def run_main(kind: type[S], component: Component | str, serve: Callable[[S], int]) -> NoReturn:
    """Read settings, set up logs, serve, and exit.

    Exit codes: what ``serve`` returns; 2 for settings that are wrong or a store that cannot be used; 1 for any
    other error. Each error is one line on standard error.

    Args:
        kind: Settings of the service.
        component: Shown in each log line.
        serve: Runs until the service ends.
    """
    try:
        settings = load_settings(kind)
        configure_logging(settings, component=component)
        code = serve(settings)
    except (InvalidRequest, UnsupportedFormat) as error:
        _say(component, error)
        code = EXIT_USAGE
    except IceDBError as error:
        _say(component, error)
        code = EXIT_FAILURE
    except KeyboardInterrupt:
        code = EXIT_FAILURE
    sys.exit(code)


def _say(component: str, error: IceDBError) -> None:
    sys.stderr.write(f"icedb {component}: {error}\n")
