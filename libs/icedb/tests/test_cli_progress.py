"""How far long work is: at a terminal with rate and rest, and nowhere else."""

import io

import pytest
from icedb.cli import output
from icedb.cli.output import VisibleConsole, followed, progress
from icedb_log.phases import current_follower, tell_progress


@pytest.fixture
def screen(monkeypatch):
    """What is written to a terminal that nobody redirects."""
    monkeypatch.setenv("TERM", "xterm")  # before the console, which looks at it once
    monkeypatch.delenv("CI", raising=False)
    console = VisibleConsole(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(output, "err", console)
    return console.file


def test_a_person_sees_how_far_it_is(screen):
    with progress("events", in_bytes=True) as show:
        show(3 << 20, 10 << 20, "a.ndjson")
    assert "a.ndjson" in screen.getvalue()
    assert "3.0 MiB of 10.0 MiB" in screen.getvalue()


def test_what_has_no_known_end_is_counted_or_only_waited_for(screen):
    with progress("waiting") as show:
        pass
    assert "waiting" in screen.getvalue()
    with progress("footers") as show:
        show(12_345)
    assert "12,345" in screen.getvalue()


def test_what_work_says_of_itself_is_shown(screen):
    with followed("vacuum of table events"):
        tell_progress("deleting", 1200, 3000)
    assert "vacuum of table events: deleting" in screen.getvalue()
    assert "1,200 of 3,000" in screen.getvalue()
    with followed("vacuum of table events", is_quiet=True):
        assert current_follower() is None


def test_a_name_in_it_cannot_steer_the_terminal(screen):
    with progress("x") as show:
        show(1, 2, "\x1b]0;owned\x07[red]name[/]\u202e")
    written = screen.getvalue()
    assert "[red]name[/]�" in written
    assert not any(each in written for each in ("\x1b]", "\x07", "\u202e"))


@pytest.mark.parametrize("where", ["pipe", "ci", "json"])
def test_nobody_else_sees_anything(screen, monkeypatch, where):
    if where == "pipe":
        pipe = VisibleConsole(file=screen, width=100)
        monkeypatch.setattr(output, "err", pipe)
    elif where == "ci":
        monkeypatch.setenv("CI", "true")
    with progress("events", is_quiet=where == "json") as show:
        show(1, 2, now="x")
    assert screen.getvalue() == ""
