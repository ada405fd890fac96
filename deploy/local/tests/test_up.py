"""What `make up` prints while it starts: a line for each part, in a terminal and in a pipe, as soon as it answers."""

import dataclasses
import io

import pytest
from icedb_local import up
from icedb_local.ports import HeldPorts
from icedb_local.screen import Screen
from icedb_local.stack_layout import DOORS, StackLayout, StackPorts
from icedb_sim.fakes.fake_clock import FakeClock
from rich.console import Console


class Pipe(io.StringIO):
    """Remembers what had been handed on at each flush."""

    def __init__(self):
        super().__init__()
        self.handed_on = ""

    def flush(self):
        self.handed_on = self.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_line_is_written_as_soon_as_a_part_answers(tmp_path, monkeypatch, is_terminal):
    pipe, seen = Pipe(), []

    class FakeStack:
        def __init__(self, layout, *, on_ready, choose_ports):
            self.layout, self.on_ready, self.program_names = layout, on_ready, ("redis", *DOORS, "ingest")

        def start(self):
            seen.append(pipe.handed_on)
            for name in ("redis", "redis", *self.program_names[1:]):  # a port was lost: all begins again, elsewhere
                self.layout = dataclasses.replace(self.layout, ports=StackPorts(*range(7000, 7017)))
                self.on_ready(name)
                seen.append(pipe.handed_on)

        def is_alive(self):
            raise KeyboardInterrupt

        def stop(self):
            seen.append("stopped")

    monkeypatch.setattr(up, "LocalStack", FakeStack)
    console = Console(file=pipe, force_terminal=is_terminal, width=100, highlight=False)
    layout = StackLayout(tmp_path, "local", StackPorts(), has_frontend=True)
    with pytest.raises(KeyboardInterrupt):
        up._run(layout, StackPorts, Screen(console, clock=FakeClock()), FakeClock())
    assert "Starting redis, snapshot" in seen[0]
    assert "redis answers (1 of 7)" in seen[1]
    assert "redis answers (1 of 7)" in seen[2].removeprefix(seen[1])
    assert "The stack is up" not in seen[6]
    assert "console answers (6 of 7)" in seen[7]
    usage = seen[7].removeprefix(seen[6])
    assert usage.index("The stack is up") < usage.index("export ICEDB_REDIS_URL=redis://127.0.0.1:7005/0")
    assert "http://127.0.0.1:7000/v1/tables/events/batches" in usage
    assert "Iceberg" in usage
    assert "Console" in usage
    assert "http://127.0.0.1:7015" in usage
    assert "export PYICEBERG_CATALOG__ICEDB__URI=http://127.0.0.1:7004" in usage
    assert "8088" not in usage
    assert "Spark is ready" not in seen[8]
    assert seen[9] == "stopped"
    assert "Spark is ready" in pipe.handed_on
    if not is_terminal:
        assert pipe.getvalue().replace("\n", "").isprintable()


def test_usual_ports_that_are_taken_are_told(monkeypatch):
    pipe = Pipe()
    monkeypatch.setattr(HeldPorts, "take", lambda _, port: port != 6379)
    screen = Screen(Console(file=pipe, force_terminal=False, width=40, highlight=False), clock=FakeClock())
    ports = up.choose_and_tell(None, screen, HeldPorts())
    assert "6379 (redis)" in pipe.getvalue()
    assert "8088" not in pipe.getvalue()
    assert ports == dataclasses.replace(StackPorts(), redis=ports.redis)


def test_a_long_line_is_not_broken_in_a_pipe():
    pipe = Pipe()
    console = Console(file=pipe, force_terminal=False, width=40, highlight=False)
    Screen(console, clock=FakeClock()).say("Starting redis, ingest, merger, janitor, gateway, beat; logs: /a/b")
    assert pipe.getvalue().count("\n") == 1
