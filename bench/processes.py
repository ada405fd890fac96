"""A competitor in a process of its own, so that its memory is its own and all are bound to the same cores.

Ours run by this Python; peers by that of ``.venv-peers``, an environment of their own (``make peers``).
"""

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from bench.figures import Figure
from bench.memory import PeakMemory, read_cpu_by_process, sampled_memory
from bench.serve import Peer

ROOT: Final = Path(__file__).parent.parent
PEERS_PYTHON: Final = ROOT / ".venv-peers" / "bin" / "python"
END_LIMIT_S: Final = 60


class ProcessWork(Protocol):
    """What runs in the process. It travels there by pickle, before anything is open."""

    name: str

    def prepare(self) -> None:
        """Make fresh inputs; the first call opens what stays open. Not timed."""
        ...

    def run(self) -> None:
        """Do the work. Timed."""
        ...

    def check(self) -> Sequence[Figure]:
        """Check the result. Raises if a row is missing."""
        ...

    def close(self) -> None:
        """End what the first :meth:`prepare` opened."""
        ...


class Remote:
    """A process that works for us: it is asked for methods of what it was sent.

    Args:
        is_peer: Whether it is one of the environment of the peers.
    """

    def __init__(self, *, is_peer: bool = False) -> None:
        if is_peer and not PEERS_PYTHON.exists():
            raise RuntimeError("the peers are not installed: run `make peers`")
        self._connection, theirs = multiprocessing.Pipe()
        python = str(PEERS_PYTHON if is_peer else sys.executable)
        self._process = subprocess.Popen(
            [python, "-c", "from bench.serve import main; main()", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def take(self, work: Any) -> str:
        """Send what it works for from now on; return its name."""
        return str(self.ask("work", work))

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method there, and wait for what it returns or raises."""
        self.send(method, *args)
        return self.receive()

    def send(self, method: str, *args: Any) -> None:
        """Call a method there."""
        try:
            self._connection.send((method, args))
        except OSError as error:
            raise self._died() from error

    def receive(self) -> Any:
        """Wait for what the call returns or raises."""
        try:
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _died(self) -> RuntimeError:
        return RuntimeError(f"process {self.pid} of a system died, exit code {self._process.poll()}")


class SystemInProcess:
    """A :class:`bench.harness.System` whose work is done by another process, with its peak memory and
    the time of its processors, of all its threads and children, as figures.

    Args:
        work: What to do there.
        is_split: Whether to report the memory of the process, its JVM and its workers apart, too.
    """

    def __init__(self, work: ProcessWork | Peer, *, is_split: bool = False) -> None:
        self._is_split = is_split
        self._peak = PeakMemory()
        self._cpu_s: float | None = None
        self._remote = Remote(is_peer=isinstance(work, Peer))
        self.name = self._remote.take(work)

    def prepare(self) -> None:
        """Make fresh inputs."""
        self._remote.ask("prepare")

    def run(self) -> None:
        """Do the work, and watch the memory."""
        before = read_cpu_by_process(self._remote.pid)
        with sampled_memory(self._remote.pid) as self._peak:
            self._remote.ask("run")
        after = read_cpu_by_process(self._remote.pid)
        # A worker that ended meanwhile, for it had nothing to do for a minute, has taken its time with it.
        is_whole = before.keys() <= after.keys()
        self._cpu_s = sum(after.values()) - sum(before.values()) if is_whole else None

    def check(self) -> Sequence[Figure]:
        """Check the result, and add the memory and the time of the processors."""
        figures = [*self._remote.ask("check"), Figure("peak_memory", "MiB", self._peak.total_mb)]
        if self._cpu_s is not None:
            figures.append(Figure("cpu_time", "s", self._cpu_s))
        if self._is_split:
            figures += [Figure(f"peak_{role}", "MiB", size_mb) for role, size_mb in self._peak.by_role_mb.items()]
        return figures

    def tell(self, method: str, *args: Any) -> None:
        """Call a method of the work, besides those that all have."""
        self._remote.ask(method, *args)

    def close(self) -> None:
        """End the process."""
        try:
            self._remote.ask("close")
        finally:
            self._remote.close()


@contextmanager
def started(*works: ProcessWork | Peer, split: tuple[type, ...] = ()) -> Iterator[list[SystemInProcess]]:
    """Start a process for each, and end them all; of works of ``split`` the parts of memory are told apart."""
    with ExitStack() as stack:
        systems: list[SystemInProcess] = []
        for work in works:
            systems.append(system := SystemInProcess(work, is_split=isinstance(work, split)))
            stack.callback(system.close)
        yield systems
