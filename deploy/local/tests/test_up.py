"""What `make up` prints while it starts: a line for each part, in a terminal and in a pipe, as soon as it answers."""

import io

import pytest
from icedb_local import up
from icedb_local.screen import Screen
from icedb_local.stack_layout import StackLayout, StackPorts
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
        def __init__(self, layout, *, on_ready):
            self.on_ready, self.program_names = on_ready, ("redis", "ingest")

        def start(self):
            seen.append(pipe.handed_on)
            for name in self.program_names:
                self.on_ready(name)
                seen.append(pipe.handed_on)
            raise KeyboardInterrupt

        def stop(self):
            seen.append("stopped")

    monkeypatch.setattr(up, "LocalStack", FakeStack)
    console = Console(file=pipe, force_terminal=is_terminal, width=100, highlight=False)
    layout = StackLayout(tmp_path, "local", StackPorts(), has_frontend=True)
    with pytest.raises(KeyboardInterrupt):
        up._run(layout, Screen(console, clock=FakeClock()), FakeClock())
    assert "Starting redis, ingest" in seen[0]
    assert "redis answers (1 of 2)" in seen[1]
    assert "ingest answers" not in seen[1]
    assert "ingest answers (2 of 2)" in seen[2]
    assert seen[3] == "stopped"


def test_a_long_line_is_not_broken_in_a_pipe():
    pipe = Pipe()
    console = Console(file=pipe, force_terminal=False, width=40, highlight=False)
    Screen(console, clock=FakeClock()).say("Starting redis, ingest, merger, janitor, gateway, beat; logs: /a/b")
    assert pipe.getvalue().count("\n") == 1
