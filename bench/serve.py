"""The process in which a system works: started with a pipe, by the Python of one environment or of the other.

It is sent what it works for, ours as an object, a peer's as a name (:class:`Peer`: the class cannot be imported where
the peer is not installed), and then calls its methods as it is asked to. Imports the standard library only.
"""

import importlib
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

from bench.figures import CORE_COUNT


class Peer:
    """Names a class below :mod:`bench.peers`, and says with which arguments to make it; travels by pickle.

    Args:
        target: ``module:Class``.
        args: Its arguments; one may be a peer, which is made as well.
        options: Its arguments by name.
    """

    def __init__(self, target: str, *args: Any, **options: Any) -> None:
        self.target = target
        self._args = args
        self._options = options

    @property
    def name(self) -> str:
        """What it is called: its argument ``name``, or that of the class."""
        return str(self._options.get("name", self.target.partition(":")[2]))

    def make(self) -> Any:
        """Import the class and make one, in the environment of the peers."""
        module, _, name = self.target.partition(":")
        args = [made(value) for value in self._args]
        options = {key: made(value) for key, value in self._options.items()}
        return getattr(importlib.import_module(module), name)(*args, **options)


def made(work: Any) -> Any:
    """Return what a peer's name stands for; anything else is itself."""
    return work.make() if isinstance(work, Peer) else work


def bind_to_cores() -> None:
    """Bind this process, and all that it starts, to the first cores that it may use."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:CORE_COUNT]))


def serve(connection: Connection) -> None:
    """Answer until there is nobody to ask: first its name, for the work, then what the methods return or raise."""
    bind_to_cores()
    work: Any = None
    while True:
        try:
            method, args = connection.recv()
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001 - it belongs to the process that asked
            connection.send(RuntimeError(f"{type(error).__name__}: {error}"))
            continue
        try:
            if method == "work":
                work = made(*args)
                answer = getattr(work, "name", "")
            else:
                answer = getattr(work, method)(*args)
        except BaseException as error:  # noqa: BLE001 - it belongs to the process that asked
            answer = RuntimeError(f"{getattr(work, 'name', '')}, {method}: {type(error).__name__}: {error}")
        try:
            connection.send(answer)
        except OSError:
            return


def main() -> None:
    """Serve the pipe that this process was started with."""
    serve(Connection(int(sys.argv[1])))
