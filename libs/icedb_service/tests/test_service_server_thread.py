"""The thread of a server's event loop: what its owner sees of start, stop and crash."""

import asyncio
import signal
import threading

import pytest
from icedb_log.errors import Unavailable
from icedb_service import http_server
from icedb_service.http_server import HealthChecks, ServerThread
from structlog.testing import capture_logs
from waiting import LIMIT_S


class Server:
    """A server that does what a test says, and notes what it did."""

    def __init__(self, *, before=None, after=None, limit_s=LIMIT_S):
        self.before, self.after, self.seen = before, after, []
        self.thread = ServerThread(
            self._serve, name="door", what="the door", start_limit_s=limit_s, stop_limit_s=LIMIT_S
        )

    async def _serve(self):
        try:
            if self.before is not None:
                await self.before()
            self.seen.append("serves")
            self.thread.show_started()
            if self.after is not None:
                await self.after()
            await self.thread.wait_for_stop()
        finally:
            self.seen.append("gave back")


async def refuse():
    raise Unavailable("the address is taken")


async def fail():
    raise ValueError("a bug")


def test_it_serves_until_it_is_stopped_and_gives_back_what_it_holds():
    server = Server()
    server.thread.start()
    assert (server.seen, server.thread.is_alive()) == (["serves"], True)
    server.thread.stop()
    assert (server.seen, server.thread.is_alive()) == (["serves", "gave back"], False)
    server.thread.stop()


def test_what_it_raises_before_it_serves_is_raised_by_start():
    server = Server(before=refuse)
    with pytest.raises(Unavailable, match="taken"):
        server.thread.start()
    assert (server.seen, server.thread.is_alive()) == (["gave back"], False)


def test_a_bug_at_the_start_keeps_its_cause():
    with pytest.raises(RuntimeError, match="the door does not start") as caught:
        Server(before=fail).thread.start()
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_server_that_does_not_start_in_time_is_stopped(monkeypatch):
    entered, released = threading.Event(), threading.Event()

    async def hang():
        entered.set()
        await asyncio.to_thread(released.wait, LIMIT_S)

    def give_up(_futures, _limit_s):
        """The time is over while it hangs; then what it waits for comes."""
        assert entered.wait(LIMIT_S)
        released.set()
        return set(), set()

    server = Server(before=hang, limit_s=5.0)
    monkeypatch.setattr(http_server, "wait", give_up)
    with pytest.raises(Unavailable, match="did not start within 5 s"):
        server.thread.start()
    assert server.seen[-1] == "gave back"
    assert not server.thread.is_alive()


def test_a_crash_is_logged_and_seen():
    server = Server(after=fail)
    with capture_logs() as logs:
        server.thread.start()
        server.thread.stop()
    assert [line["event"] for line in logs] == ["door_crashed"]
    assert server.seen == ["serves", "gave back"]
    assert not server.thread.is_alive()


def test_who_stops_before_the_start_stops_it():
    server = Server()
    server.thread.stop()
    server.thread.start()
    server.thread.stop()  # waits for its end
    assert (server.seen, server.thread.is_alive()) == ([], False)


class Ended(BaseException):
    """Stands for the end of this process."""


@pytest.mark.parametrize(("what", "loop_pid"), [("loop", None), ("loop", 4711), ("engine", 4711)])
def test_a_process_that_stands_still_ends_after_some_looks_in_a_row(monkeypatch, what, loop_pid):
    looks, ended, killed = [], threading.Event(), []
    answers = [False, False, False, True, False, False, False, False]  # one that recovers is kept

    def check():
        looks.append(answers.pop(0))
        if not looks[-1]:
            raise Unavailable("it stands still")

    def end(code):
        killed.append(code)
        ended.set()
        raise Ended

    monkeypatch.setattr(http_server.os, "_exit", end)
    monkeypatch.setattr(http_server.os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(http_server.threading, "excepthook", lambda _: None)
    health = HealthChecks(alive={what: check}, ready={"store": ended.set}, loop_pid=loop_pid)
    before = set(threading.enumerate())
    with capture_logs() as logs:
        http_server.StuckWatch(health, every_s=0.001)
        for watch in set(threading.enumerate()) - before:
            watch.join(LIMIT_S)  # what it raises at its end comes while nobody else hears of it
    assert ended.is_set()
    assert looks == [False, False, False, True, False, False, False, False]
    assert killed == [*([(4711, signal.SIGKILL)] if (what, loop_pid) == ("loop", 4711) else []), 1]
    assert [each["problems"] for each in logs if each["event"] == "process_stuck"] == [{what: "it stands still"}]
