"""What a service says of its clock, and that it does not begin to work with one that is far off."""

import pytest
from icedb_log.errors import Unavailable
from icedb_log.store.object_store import ObjectPage
from icedb_log.store.store_clock import SKEW_LIMIT_MS
from icedb_log.warehouse import Warehouse
from icedb_service import main
from icedb_service.main import require_near_clock, watch_clock
from icedb_service.metrics import ClockMetrics
from icedb_service.settings import ServiceSettings, load_settings
from icedb_sim.fakes.fake_clock import FakeClock
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

LIMIT_MS = SKEW_LIMIT_MS


class Store:
    """Tells a time that is off from the host's, in whole seconds, and takes a while to answer."""

    def __init__(self, clock, *, off_ms=0, took_ms=0):
        self.time_listeners = []
        self.clock, self.off_ms, self.took_ms = clock, off_ms, took_ms

    def list_page(self, _prefix, *, limit):
        assert limit == 1
        self.clock.advance(self.took_ms)
        return ObjectPage((), None, (self.clock.now_ms() + self.off_ms) // 1000 * 1000)


@pytest.fixture
def clock():
    return FakeClock(1_700_000_000_999)


@pytest.fixture
def settings(monkeypatch):
    monkeypatch.setenv("ICEDB_STORE", "file:///nowhere")
    return load_settings(ServiceSettings)


def value(registry, name, **labels):
    return registry.get_sample_value(name, labels)


def test_a_gauge_shows_the_skew_and_the_counter_the_jumps(clock):
    registry, store = CollectorRegistry(), Store(clock)
    watch_clock(store, ClockMetrics(registry), clock=clock)
    assert value(registry, "icedb_clock_jumps_total", direction="back") == 0
    with capture_logs() as logs:
        store.time_listeners[0](clock.now_ms() + 29_000)
        assert logs == []
        store.time_listeners[0](clock.now_ms() + 90_000)
        store.time_listeners[0](clock.now_ms() + 90_000)
        assert [line["event"] for line in logs] == ["clock_skewed"]
        assert value(registry, "icedb_clock_skew_seconds") == -90
        clock.set_wall(clock.now_ms() - 3_600_000)
        store.time_listeners[0](clock.now_ms())
    assert [line["event"] for line in logs] == ["clock_skewed", "clock_jumped", "clock_agrees"]
    assert value(registry, "icedb_clock_skew_seconds") == 0
    assert value(registry, "icedb_clock_jumps_total", direction="back") == 1
    assert value(registry, "icedb_clock_jumps_total", direction="ahead") == 0


@pytest.mark.parametrize(("off_ms", "took_ms"), [(0, 0), (LIMIT_MS, 0), (-LIMIT_MS, 0), (0, 2 * LIMIT_MS)])
def test_a_service_begins_within_the_limit_however_long_an_answer_takes(clock, off_ms, took_ms):
    require_near_clock(Warehouse(Store(clock, off_ms=off_ms, took_ms=took_ms)), clock=clock)


@pytest.mark.parametrize(("off_ms", "words"), [(LIMIT_MS + 2000, "behind"), (-LIMIT_MS - 2000, "ahead of")])
def test_beyond_the_limit_it_says_which_way_and_what_to_do(clock, off_ms, words):
    with pytest.raises(Unavailable, match=rf"{words} the store's.*more than 300000 ms.*NTP"):
        require_near_clock(Warehouse(Store(clock, off_ms=off_ms)), clock=clock)


def test_a_service_waits_until_somebody_sets_its_clock(clock, settings, monkeypatch):
    store = Store(clock, off_ms=LIMIT_MS + 10_000)
    monkeypatch.setattr(type(settings.store_settings), "open", lambda _settings: Warehouse(store))
    clock.sleep_ms = lambda _pause_ms: setattr(store, "off_ms", 0)
    with capture_logs() as logs:
        main.wait_for_servers(settings, clock=clock, needs_redis=False, only_reads=True)
    assert [(line["event"], line["server"]) for line in logs] == [("server_unavailable", "clock")]
