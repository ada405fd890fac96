"""What may be done to a request on its way to the S3 server, and which requests it is done to. Plain values.

A fault is *active* from :meth:`ActiveFaults.add` to :meth:`ActiveFaults.remove`; each request meets the first active
fault that wants it. What was really done is noted for each door, with its time: so a fault that met nothing counts as
none, and whom it met, and when, can be compared with what that service has counted.
"""

import dataclasses
import re
import threading
from dataclasses import dataclass
from typing import Final, Literal

from icedb_log.clock import Clock

Action = Literal[
    "status",  # answered with an error; the server does not see it
    "status_after",  # the server does it, the client is answered with an error
    "hold",  # the server does not see it, the client gets no answer for a while, then the connection ends
    "slow",  # forwarded, but later
    "reset",  # the connection ends; the server does not see it
    "drop",  # the server does it; the connection ends before its answer
    "truncate",  # half of the answer's body comes
    "late",  # the connection ends at once; the server gets the request later
    "ahead",  # the answer says that it is later than it is
]
WRITES: Final = frozenset({"PUT", "POST", "DELETE"})


@dataclass(frozen=True, slots=True)
class ProxyFault:
    """One kind of trouble for some requests.

    Attributes:
        action: What happens to them.
        methods: Which methods; empty: all.
        target: Regular expression that is searched for in path and query.
        status: Of ``status`` and ``status_after``.
        delay_ms: Of ``hold``, ``slow``, ``late`` and ``ahead``.
        limit: Requests that meet it at most; ``None``: all while it is active.
    """

    action: Action
    methods: frozenset[str] = frozenset()
    target: str = ""
    status: int = 503
    delay_ms: int = 0
    limit: int | None = None

    def wants(self, method: str, path: str) -> bool:
        """Whether a request is one of those."""
        return (not self.methods or method in self.methods) and re.search(self.target, path) is not None


@dataclass(slots=True)
class FaultHits:
    """A fault that is or was active, and what it did.

    Attributes:
        fault: Which.
        times_ms: When each request met it, monotonic, by the door through which it came.
        requests: The same requests: method, path and query of each.
    """

    fault: ProxyFault
    times_ms: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    requests: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    @property
    def by_door(self) -> dict[str, int]:
        """Requests that met it, by the door through which they came."""
        return {door: len(times_ms) for door, times_ms in self.times_ms.items()}

    @property
    def total(self) -> int:
        """Requests that met it."""
        return sum(self.by_door.values())

    @property
    def is_used_up(self) -> bool:
        """Whether its limit is reached."""
        return self.fault.limit is not None and self.total >= self.fault.limit


class ActiveFaults:
    """The faults that are active now, in the order in which they were added. Safe for many threads.

    Args:
        clock: For the times of what they meet.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._active: list[FaultHits] = []

    def add(self, fault: ProxyFault) -> FaultHits:
        """Begin a fault; returns where its hits are counted, which is also what ends it."""
        hits = FaultHits(fault)
        with self._lock:
            self._active.append(hits)
        return hits

    def remove(self, hits: FaultHits) -> None:
        """End a fault. Idempotent."""
        with self._lock:
            self._active = [other for other in self._active if other is not hits]

    def clear(self) -> None:
        """End all of them."""
        with self._lock:
            self._active = []

    def take(self, method: str, path: str, *, door: str) -> FaultHits | None:
        """Return what happens to a request, which is noted there."""
        with self._lock:
            for hits in self._active:
                if not hits.is_used_up and hits.fault.wants(method, path):
                    hits.times_ms.setdefault(door, []).append(self._clock.monotonic_ms())
                    hits.requests.setdefault(door, []).append(f"{method} {path}")
                    return hits
        return None

    def give_back(self, hits: FaultHits, *, door: str) -> None:
        """Forget the last request of a door: the fault turned out not to fit it (a body too short to be cut)."""
        with self._lock:
            hits.times_ms[door].pop()
            hits.requests[door].pop()
