"""What may be done to a request on its way to the S3 server, and which requests it is done to. Plain values.

A fault is *active* from :meth:`ActiveFaults.add` to :meth:`ActiveFaults.remove`; each request meets the first active
fault that wants it. What was really done is counted for each door, so that a fault that met nothing counts as none.
"""

import dataclasses
import re
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

Action = Literal[
    "status",  # answered with an error; the server does not see it
    "status_after",  # the server does it, the client is answered with an error
    "hold",  # the server does not see it, the client gets no answer for a while, then the connection ends
    "slow",  # forwarded, but later
    "reset",  # the connection ends; the server does not see it
    "drop",  # the server does it; the connection ends before its answer
    "truncate",  # half of the answer's body comes
    "late",  # the connection ends at once; the server gets the request later
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
        delay_ms: Of ``hold``, ``slow`` and ``late``.
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
        by_door: Requests that met it, by the door through which they came.
    """

    fault: ProxyFault
    by_door: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Requests that met it."""
        return sum(self.by_door.values())

    @property
    def is_used_up(self) -> bool:
        """Whether its limit is reached."""
        return self.fault.limit is not None and self.total >= self.fault.limit


class ActiveFaults:
    """The faults that are active now, in the order in which they were added. Safe for many threads."""

    def __init__(self) -> None:
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

    def take(self, method: str, path: str, *, door: str) -> ProxyFault | None:
        """Return what happens to a request, and count it."""
        with self._lock:
            for hits in self._active:
                if not hits.is_used_up and hits.fault.wants(method, path):
                    hits.by_door[door] += 1
                    return hits.fault
        return None

    def give_back(self, fault: ProxyFault, *, door: str) -> None:
        """Take back a count: the fault turned out not to fit (a body too short to be cut)."""
        with self._lock:
            for hits in self._active:
                if hits.fault is fault and hits.by_door[door]:
                    hits.by_door[door] -= 1
                    return
