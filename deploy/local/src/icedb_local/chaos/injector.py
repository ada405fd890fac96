"""Makes things fail, and mends them. Every fault is a block: inside it lasts, after it what was broken is whole again.

Only processes of the stack that it was given are touched, each by its id.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final

import psutil
import redis
from icedb_log.clock import Clock
from icedb_log.errors import Unavailable

from icedb_local.chaos.batches import BatchLedger, Crash
from icedb_local.chaos.chaos_layout import BROKER, LOCK_MASTERS, WATCHERS_DOOR, ChaosLayout
from icedb_local.chaos.fault_plan import PlannedFault
from icedb_local.chaos.fault_proxy import Action, FaultHits, FaultProxy, ProxyFault
from icedb_local.chaos.small_disks import SmallDisks
from icedb_local.chaos.staged_groups import GROUP_KEY
from icedb_local.ports import LOOPBACK
from icedb_local.stack import LocalStack

QUORUM: Final = LOCK_MASTERS[:2]
LOCK_WAIT_MS: Final = 2_000
POLL_MS: Final = 2
GROUP_WAIT_MS: Final = 3_000
GROUP_HELD_MS: Final = 1_000
"""How long the PUT of a group is on its way while its front end is killed."""
START_TRIES: Final = 600
START_PAUSE_MS: Final = 100


@dataclass(slots=True)
class Effect:
    """What a fault has really done.

    Attributes:
        count: Processes, servers or keys that it met, told when it has ended.
        must_show: Whether it met a service, so that metrics have to tell; of a fault of the proxy: what ``hits`` says.
        hits: Requests that it met at the proxy, also while it lasts.
    """

    count: int = 0
    must_show: bool = True
    hits: FaultHits | None = None

    @property
    def has_met_a_service(self) -> bool:
        """Of a fault of the proxy: whether a request of a service has met it."""
        return self.hits is not None and any(n for door, n in self.hits.by_door.items() if door != WATCHERS_DOOR)


class Injector:
    """Begins and ends faults.

    Args:
        layout: The stack's.
        stack: It runs.
        proxy: Before its store.
        disks: Of its workers.
        ledger: Asked for batches that crash their reader.
        clock: For waits.
    """

    def __init__(
        self,
        layout: ChaosLayout,
        stack: LocalStack,
        proxy: FaultProxy,
        disks: SmallDisks,
        ledger: BatchLedger,
        *,
        clock: Clock,
    ) -> None:
        self._layout = layout
        self._stack = stack
        self._proxy = proxy
        self._disks = disks
        self._ledger = ledger
        self._clock = clock
        self._by_name: dict[str, Callable[[PlannedFault], AbstractContextManager[Effect]]] = {
            "kill": self._kill,
            "kill_with_group": self._kill_with_group,
            "kill_child": self._kill_child,
            "stop": self._stop,
            "s3_stop": self._stop,
            "s3_cut": self._cut,
            "disk_full": self._fill_disk,
            "deadly_raises": partial(self._send_deadly, "raises"),
            "deadly_exits": partial(self._send_deadly, "exits"),
        }

    def inject(self, planned: PlannedFault) -> AbstractContextManager[Effect]:
        """Return the block in which a fault lasts. Raises Unavailable on entry if its target is not there now."""
        name = planned.kind.name
        if planned.kind.proxy is not None:
            return self._at_proxy(planned)
        if name in self._by_name:
            return self._by_name[name](planned)
        names = QUORUM if name.startswith("locks_") else (planned.target,)
        what = name.rpartition("_")[2]
        if what == "empty":
            return self._empty(names)
        return self._hold_down(names) if what == "down" else self._stop_all(names)

    @contextlib.contextmanager
    def _at_proxy(self, planned: PlannedFault) -> Iterator[Effect]:
        assert planned.kind.proxy is not None
        hits = self._proxy.begin(planned.kind.proxy)
        try:
            yield Effect(hits=hits)
        finally:
            self._proxy.end(hits)

    @contextlib.contextmanager
    def _cut(self, _: PlannedFault) -> Iterator[Effect]:
        effect = Effect(max(1, self._proxy.close_doors()))
        try:
            yield effect
        finally:
            self._proxy.open_doors()

    @contextlib.contextmanager
    def _kill(self, planned: PlannedFault) -> Iterator[Effect]:
        with _there():
            self._stack.find_process(planned.target).kill()
        yield Effect(1)

    @contextlib.contextmanager
    def _kill_with_group(self, planned: PlannedFault) -> Iterator[Effect]:
        """Kill a front end that has sent a group and has no answer: the group lands, or, each second time, never."""
        action: Action = "slow" if planned.number % 2 else "hold"
        process = self._stack.find_process(planned.target)
        put = self._proxy.begin(ProxyFault(action, frozenset({"PUT"}), GROUP_KEY, delay_ms=GROUP_HELD_MS, limit=1))
        try:
            if not self._wait_until(lambda: put.total > 0, GROUP_WAIT_MS):
                raise Unavailable(f"{planned.target} stages no group now")
            with _there():
                process.kill()
        finally:
            self._proxy.end(put)
        (sent_ms,) = (time_ms for times_ms in put.times_ms.values() for time_ms in times_ms)
        yield Effect(int(self._clock.monotonic_ms() - sent_ms < GROUP_HELD_MS))  # else it was answered before

    @contextlib.contextmanager
    def _kill_child(self, planned: PlannedFault) -> Iterator[Effect]:
        with _there():
            children = self._stack.find_process(planned.target).children(recursive=True)
            workers = [child for child in children if "java" in child.name() or "icedb" in " ".join(child.cmdline())]
            if not workers:
                raise Unavailable(f"{planned.target} has no child now")
            workers[planned.number % len(workers)].kill()
        yield Effect(1)

    @contextlib.contextmanager
    def _stop(self, planned: PlannedFault) -> Iterator[Effect]:
        with _there():
            process = self._stack.find_process(planned.target)
            tree = [process, *process.children(recursive=True)]
        with _suspended(tree):
            yield Effect(len(tree))

    @contextlib.contextmanager
    def _stop_all(self, names: tuple[str, ...]) -> Iterator[Effect]:
        with _suspended([self._stack.find_process(name) for name in names]):
            yield Effect(len(names))

    @contextlib.contextmanager
    def _hold_down(self, names: tuple[str, ...]) -> Iterator[Effect]:
        try:
            for name in names:
                self._stack.kill_and_hold_down(name)
            yield Effect(len(names))
        finally:
            for name in names:
                self.ensure_running(name)

    @contextlib.contextmanager
    def _empty(self, names: tuple[str, ...]) -> Iterator[Effect]:
        clients = [redis.Redis(LOOPBACK, self._layout.redis_ports[name], socket_timeout=1.0) for name in names]
        effect = Effect()
        try:
            if len(names) > 1:
                # So that losing it is felt.
                self._wait_until(lambda: all(client.dbsize() for client in clients), LOCK_WAIT_MS)
            for client in clients:
                effect.count += int(client.dbsize())
                client.flushall()
        except redis.RedisError as error:
            raise Unavailable(f"{', '.join(names)} does not answer: {error}") from error
        finally:
            for client in clients:
                client.close()
        effect.count = effect.count if BROKER not in names else max(1, effect.count)
        # Whoever held the lock may be dead: a killed worker leaves it behind.
        effect.must_show = len(names) == 1
        yield effect

    @contextlib.contextmanager
    def _fill_disk(self, planned: PlannedFault) -> Iterator[Effect]:
        with _there():
            process = self._stack.find_process(planned.target)
            tree = [process, *process.children(recursive=True)]
        effect = Effect()
        with self._disks.full(planned.target, tree):
            before_ns = self._disks.last_use_ns(planned.target)
            yield effect
            # Nothing was made in it, so nobody has met it.
            effect.count = int(self._disks.last_use_ns(planned.target) != before_ns)

    @contextlib.contextmanager
    def _send_deadly(self, crash: Crash, _: PlannedFault) -> Iterator[Effect]:
        before = self._ledger.count_deadly(crash)
        self._ledger.ask_for_deadly(crash)
        effect = Effect()
        yield effect
        # What was not acknowledged may not be there, so nobody has to meet it.
        effect.count = self._ledger.count_deadly(crash) - before

    def ensure_running(self, name: str) -> None:
        """Start a program if it does not run. Raises Unavailable if it does not come up."""
        for _ in range(START_TRIES):
            with contextlib.suppress(Unavailable):
                self._stack.find_process(name)
                return
            with contextlib.suppress(Unavailable):
                self._stack.start_again(name)
            self._clock.sleep_ms(START_PAUSE_MS)
        raise Unavailable(f"{name} does not start:\n{self._stack.read_log_tail(name)}")

    def _wait_until(self, condition: Callable[[], bool], wait_ms: int) -> bool:
        """Wait a moment for a condition; return whether it holds."""
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        while not condition():
            if self._clock.monotonic_ms() >= deadline_ms:
                return False
            self._clock.sleep_ms(POLL_MS)
        return True


@contextlib.contextmanager
def _there() -> Iterator[None]:
    try:
        yield
    except psutil.NoSuchProcess as error:
        raise Unavailable(f"the process has gone: {error}") from error


@contextlib.contextmanager
def _suspended(processes: list[psutil.Process]) -> Iterator[None]:
    stopped: list[psutil.Process] = []
    try:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
                stopped.append(process)
        yield
    finally:
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
