"""How a service's process begins and ends: settings, logs, servers that it waits for, its clock, exit codes.

A server that does not answer is waited for, with one log line for each try that names its address. A store that
ignores conditional writes is refused at once. A clock that is too far from the store's keeps a service from beginning;
nothing is decided by it once a service works: what a wrong clock can do is bounded by the protocol
(docs/internals/clocks.md).
"""

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, Unavailable, UnsupportedFormat
from icedb_log.keys import clock_key
from icedb_log.names import Component
from icedb_log.store.object_store import ObjectPage, ObjectStore
from icedb_log.store.store_clock import SKEW_LIMIT_MS, SKEW_WARN_MS, ClockWatch, TellsTime
from icedb_log.units import SECOND_MS
from icedb_log.warehouse import Warehouse
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from icedb_service.logs import configure_logging, get_logger
from icedb_service.metrics import ClockMetrics
from icedb_service.settings import S, ServiceSettings, load_settings
from icedb_service.tracing import configure_tracing


def watch_clock(store: ObjectStore, metrics: ClockMetrics, *, clock: Clock) -> None:
    """Show from now on, and tell, how this host's clock stands to a store's, if the store's answers tell the time."""
    lock, is_off = threading.Lock(), False

    def show_skew(skew_ms: int) -> None:
        nonlocal is_off
        metrics.skew.set(skew_ms / SECOND_MS)
        with lock:
            was_off, is_off = is_off, abs(skew_ms) > SKEW_WARN_MS
            has_come, has_gone = is_off and not was_off, was_off and not is_off
        if has_come:
            get_logger().warning(
                "clock_skewed",
                skew_ms=skew_ms,
                limit_ms=SKEW_WARN_MS,
                mitigation="nothing is lost or deleted early; set the clock that is wrong (NTP)",
            )
        elif has_gone:
            get_logger().info("clock_agrees", skew_ms=skew_ms)

    def count_jump(jumped_ms: int) -> None:
        metrics.jumps.labels("ahead" if jumped_ms > 0 else "back").inc()
        get_logger().warning("clock_jumped", jumped_ms=jumped_ms, mitigation="no age and no order depends on it")

    if isinstance(store, TellsTime):
        store.time_listeners.append(ClockWatch(clock, on_skew=show_skew, on_jump=count_jump).hear)


def ask_store(warehouse: Warehouse) -> ObjectPage:
    """Return the shortest listing that a store can give: whether it answers, and when. Raises Unavailable."""
    return warehouse.store.list_page(f"{warehouse.root}/" if warehouse.root else "", limit=1)


def look_at_store(warehouse: Warehouse) -> None:
    """See whether a store answers, by a small GET: a listing costs twelve times as much. Raises Unavailable."""
    with suppress(NotFound):  # it need not be there
        warehouse.store.get(clock_key(f"{warehouse.root}/" if warehouse.root else ""))


def require_near_clock(warehouse: Warehouse, *, clock: Clock) -> None:
    """Return if this host's clock is near the store's. Costs one listing.

    Raises:
        Unavailable: It is further off than it may be, or the store did not answer.
    """
    before_ms = clock.now_ms()
    store_ms = ask_store(warehouse).store_now_ms
    after_ms = clock.now_ms()
    # The answer was made in between, and S3 tells whole seconds, cut off: by so much is it certainly ahead, or behind.
    ahead_ms, behind_ms = before_ms - store_ms - SECOND_MS, store_ms - after_ms
    if max(ahead_ms, behind_ms) > SKEW_LIMIT_MS:
        raise Unavailable(
            f"this host's clock is {max(ahead_ms, behind_ms)} ms {'ahead of' if ahead_ms > 0 else 'behind'} the "
            f"store's, more than {SKEW_LIMIT_MS} ms: set the one that is wrong (NTP)"
        )


FIRST_PAUSE_MS: Final = 500
MAX_PAUSE_MS: Final = 5_000


def wait_until_available(what: str, check: Callable[[], object], *, clock: Clock) -> None:
    """Call ``check`` until it does not raise Unavailable, with growing pauses. Other errors pass."""

    def tell(state: RetryCallState) -> None:
        error = state.outcome and state.outcome.exception()
        retry_in_ms = round(state.upcoming_sleep * SECOND_MS)
        get_logger().warning("server_unavailable", server=what, error=str(error), retry_in_ms=retry_in_ms)

    Retrying(
        retry=retry_if_exception_type(Unavailable),
        wait=wait_exponential(FIRST_PAUSE_MS / SECOND_MS, max=MAX_PAUSE_MS / SECOND_MS),
        before_sleep=tell,
        sleep=lambda pause_s: clock.sleep_ms(round(pause_s * SECOND_MS)),
    )(check)


def wait_for_servers(
    settings: ServiceSettings, *, clock: Clock, needs_redis: bool = True, only_reads: bool = False
) -> None:
    """Wait until Redis and the store answer, probe the store, and wait until this host's clock is near the store's.

    A store that is only read is not probed.

    Raises:
        InvalidRequest: The store's address cannot be right.
        UnsupportedFormat: The store ignores conditional writes; it cannot be used.
    """
    if needs_redis:
        from icedb_service.redis_clients import ask_redis  # noqa: PLC0415 - 0.4 s, and half of the services need none

        wait_until_available("redis", lambda: ask_redis(settings), clock=clock)

    def look() -> None:
        warehouse = settings.store_settings.open()  # which may fail, too
        if only_reads:
            ask_store(warehouse)
        else:
            warehouse.store.probe()

    wait_until_available("store", look, clock=clock)
    warehouse = settings.store_settings.open()
    check = partial(require_near_clock, warehouse, clock=clock)
    wait_until_available("clock", check, clock=clock)


EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2

_LAST_MOMENT_MS: Final = SECOND_MS


def stop_on_signals() -> threading.Event:
    """Return what SIGTERM and SIGINT set from now on."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def find_hanging_threads() -> list[str]:
    """Return the names of threads that would keep this process; waits a second for those that are about to end."""
    found = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + _LAST_MOMENT_MS
    for thread in found:
        thread.join(max(0, deadline_ms - clock.monotonic_ms()) / SECOND_MS)
    return [thread.name for thread in found if thread.is_alive()]


def run_main(kind: type[S], component: Component | str, serve: Callable[[S], int]) -> NoReturn:
    """Read settings, set up logs, serve, and exit.

    Exit codes: what ``serve`` returns; 2 for settings that are wrong or a store that cannot be used; 1 for any
    other error. Each error is one line on standard error.
    """
    try:
        settings = load_settings(kind)
        configure_logging(settings, component=component)
        configure_tracing(component)
        code = serve(settings)
    except IceDBError as error:
        sys.stderr.write(f"icedb {component}: {error}\n")
        code = EXIT_USAGE if isinstance(error, InvalidRequest | UnsupportedFormat) else EXIT_FAILURE
    except KeyboardInterrupt:
        code = EXIT_FAILURE
    sys.exit(code)
