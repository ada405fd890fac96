import pytest
from icedb_log.errors import InvalidRequest, Unavailable, UnsupportedFormat
from icedb_service import main as main_module
from icedb_service.main import run_main, wait_until_available
from icedb_service.settings import ServiceSettings
from icedb_sim.fakes.manual_clock import ManualClock


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    monkeypatch.setenv("ICEDB_STORE", "file:///tmp/w")
    monkeypatch.setattr(main_module, "configure_logging", lambda settings, component: None)


def leave_with(serve):
    with pytest.raises(SystemExit) as left:
        run_main(ServiceSettings, "merge", serve)
    return left.value.code


@pytest.mark.parametrize(
    ("error", "code"), [(InvalidRequest("no"), 2), (UnsupportedFormat("no"), 2), (Unavailable("no"), 1)]
)
def test_an_error_is_one_line_and_an_exit_code(capsys, error, code):
    def serve(_settings):
        raise error

    assert leave_with(serve) == code
    assert capsys.readouterr().err == "icedb merge: no\n"


def test_bad_settings_never_reach_the_service(capsys, monkeypatch):
    monkeypatch.setenv("ICEDB_LOCK_TTL_MS", "soon")
    assert leave_with(lambda _settings: pytest.fail("served")) == 2
    assert capsys.readouterr().err.startswith("icedb merge: settings: ICEDB_LOCK_TTL_MS='soon'")


def test_what_serve_returns_is_the_exit_code():
    assert leave_with(lambda _settings: 7) == 7


def test_a_server_that_is_away_is_waited_for_with_growing_pauses():
    clock = ManualClock()
    answers = [Unavailable("x")] * 8

    def check():
        if answers:
            raise answers.pop()

    wait_until_available("redis", check, clock=clock)
    assert clock.slept_ms == [500, 1000, 2000, 4000, 5000, 5000, 5000, 5000]


def test_a_store_that_cannot_be_used_is_not_waited_for():
    def check():
        raise UnsupportedFormat("ignores conditions")

    with pytest.raises(UnsupportedFormat):
        wait_until_available("store", check, clock=ManualClock())
