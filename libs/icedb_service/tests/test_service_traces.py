"""When traces are on, and what they cost when they are not."""

import subprocess
import sys

import pytest
from icedb_log.errors import InvalidRequest
from icedb_log.phases import MAX_PHASES, Phase, adopt, phase, recording
from icedb_service import tracing as module
from icedb_service.spans import derive
from icedb_service.tracing import ENABLING, configure_tracing, is_wanted, tracing
from icedb_sim.fakes.fake_clock import FakeClock


@pytest.mark.parametrize(
    ("wanted", "environ"),
    [
        (False, {}),
        (True, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}),
        (True, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}),
        (True, {"OTEL_TRACES_EXPORTER": "console"}),
        (False, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}),
        (False, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_TRACES_EXPORTER": "none"}),
        (False, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}),
        (False, {"OTEL_SERVICE_NAME": "ingest"}),
    ],
)
def test_traces_are_on_where_the_standard_variables_say_where_they_go(wanted, environ):
    assert is_wanted(environ) is wanted


@pytest.fixture
def env(monkeypatch):
    for name in ENABLING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module._process, "component", "")
    return monkeypatch


def test_nothing_is_made_or_said_without_them(env):
    configure_tracing("ingest")
    assert tracing() is None


def test_an_exporter_that_there_is_not_is_refused_with_those_that_there_are(env):
    env.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(InvalidRequest, match="'zipkin' is none of: otlp, console, none"):
        configure_tracing("ingest")


def test_what_is_missing_is_said_with_the_remedy(env):
    env.setenv("OTEL_TRACES_EXPORTER", "otlp")
    env.setattr(module, "find_spec", lambda _name: None)
    with pytest.raises(InvalidRequest, match=r"pip install 'icedb-service\[otel\]', or set OTEL_SDK_DISABLED=true"):
        configure_tracing("ingest")
    assert tracing() is None


def test_nothing_of_opentelemetry_is_imported_until_it_is_asked_for():
    ask = (
        "import sys, icedb_service.tracing as t\n"
        "t.configure_tracing('x'); assert t.tracing() is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_trace_of_a_batch_follows_from_its_id_alone():
    batch_id = "01a219ab-0928-70ad-8e96-5670af6295f7"
    ref = derive(batch_id)
    assert f"{ref.trace_id:032x}" == "01a219ab092870ad3a5959c2bd8a57de"
    assert ref == derive(batch_id)
    assert ref.span_id
    lows = {derive(f"01a219ab-0928-70ad-{byte:02x}96-5670af6295f7").trace_id >> 62 & 3 for byte in range(0x80, 0xC0)}
    assert lows == {0, 1, 2, 3}, "samplers compare these bits"


def test_phases_have_times_parents_and_errors():
    clock = FakeClock()
    with recording(clock) as recorder, pytest.raises(KeyError), phase("outer", rows=3):
        clock.advance(5)
        with phase("inner"):
            clock.advance(7)
        raise KeyError
    inner, outer = recorder.phases
    assert (outer.name, outer.number, outer.parent, outer.ended_ms - outer.started_ms) == ("outer", 0, -1, 12)
    assert (inner.number, inner.parent, inner.ended_ms - inner.started_ms) == (1, 0, 7)
    assert (outer.error, inner.error, outer.attributes) == ("KeyError", "", {"rows": 3})


def test_phases_of_a_unit_become_parts_of_what_is_being_done():
    with recording(FakeClock()) as recorder:
        with phase("first"):
            pass
        with phase("write files"):
            adopt((Phase("sort", 1, 0, 1, 2), Phase("read", 0, -1, 0, 3)))
        with phase("last"):
            pass
    found = {each.name: (each.number, each.parent) for each in recorder.phases}
    assert found == {"first": (0, -1), "write files": (1, -1), "read": (2, 1), "sort": (3, 2), "last": (4, -1)}
    adopt((Phase("nobody records", 0, -1, 0, 0),))
    with phase("nobody records this either"):
        pass


def test_a_recording_is_bounded():
    with recording(FakeClock()) as recorder:
        for _ in range(MAX_PHASES + 10):
            with phase("again"):
                pass
        adopt((Phase("sort", 0, -1, 1, 2),))
    assert len(recorder.phases) == MAX_PHASES
