"""Callers in processes of their own: what they measure is the answer, not each other's interpreter.

The processes are started once and serve every case: a caller travels to them by pickle, opens what it needs, calls once
without a clock, and then as often as the time allows. Peers call from the environment of the peers.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter

from bench.figures import Figure, TakesTurns, latency_figures
from bench.processes import Remote
from bench.serve import Peer
from bench.snapshot_work import Caller, Calling

AnyCaller = Caller | Peer


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of some callers measured.

    Attributes:
        elapsed_s: From the first call to the end of the last.
        latencies_s: Of all calls.
        file_counts: What the answers had, each count once.
    """

    elapsed_s: float
    latencies_s: tuple[float, ...]
    file_counts: frozenset[int]


class CallerPool:
    """Processes that call. Use :func:`running_callers`.

    Args:
        ours: Of our environment.
        peers: As many of the peers'.
    """

    def __init__(self, ours: Sequence[Remote], peers: Sequence[Remote]) -> None:
        self._ours = ours
        self._peers = peers

    def run(self, caller: AnyCaller, *, count: int, seconds: float) -> Turn:
        """Let ``count`` processes call side by side for some seconds, each at least once."""
        used = (self._peers if isinstance(caller, Peer) else self._ours)[:count]
        _ask_all(used, "open", caller)
        began = perf_counter()
        answers = _ask_all(used, "call", seconds)
        elapsed_s = perf_counter() - began
        latencies_s = tuple(latency for latencies, _ in answers for latency in latencies)
        return Turn(elapsed_s, latencies_s, frozenset().union(*(counts for _, counts in answers)))


def _ask_all(remotes: Sequence[Remote], method: str, *args: object) -> list[tuple[list[float], set[int]]]:
    for remote in remotes:
        remote.send(method, *args)
    return [remote.receive() for remote in remotes]


class CallersSystem(TakesTurns):
    """A :class:`bench.harness.System`: some callers for some time.

    Args:
        caller: Who calls.
        pool: Where.
        count: How many at once.
        seconds: For how long.
        file_count: What each answer must have.
    """

    def __init__(
        self,
        caller: AnyCaller,
        *,
        pool: CallerPool,
        count: int,
        seconds: float,
        file_count: int,
    ) -> None:
        self.name = caller.name
        self.row_count = 0
        self._caller = caller
        self._pool = pool
        self._count = count
        self._seconds = seconds
        self._file_count = file_count
        self._turn = Turn(0.0, (), frozenset())

    def run(self) -> None:
        """Call."""
        self._turn = self._pool.run(self._caller, count=self._count, seconds=self._seconds)

    def check(self) -> Sequence[Figure]:
        """Look that every answer was whole; say how long they took."""
        if self._turn.file_counts != {self._file_count}:
            raise AssertionError(f"{self.name}: {set(self._turn.file_counts)} files, not {self._file_count}")
        self.row_count = len(self._turn.latencies_s)
        figures = latency_figures(self._turn.latencies_s)
        return (*figures, Figure("calls_per_second", "1/s", self.row_count / self._turn.elapsed_s))


@contextmanager
def running_callers(count: int) -> Iterator[CallerPool]:
    """Run processes that wait for somebody to call."""
    with ExitStack() as stack:
        remotes: list[Remote] = []
        for number in range(2 * count):
            remotes.append(Remote(is_peer=number >= count))
            stack.callback(remotes[-1].close)
            remotes[-1].take(Calling())
        yield CallerPool(remotes[:count], remotes[count:])
