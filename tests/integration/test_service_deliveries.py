"""How a worker takes messages: one at a time, commands before most wake-ups; it goes on when an acknowledgement fails."""

import contextlib

import pytest
from icedb_client.settings import ClientSettings
from icedb_client.wakeups import WakeupSender
from icedb_log.clock import SystemClock
from icedb_log.names import JANITOR_VACUUM
from icedb_service.celery_app import make_app
from icedb_service.redis_clients import open_redis
from icedb_service.settings import ServiceSettings
from waiting import LIMIT_MS, wait_until
from worker_process import running_worker

pytestmark = pytest.mark.redis


# Each task leaves a file of the table's name, writes the name into a list, and ends when there is a file "go". The first acknowledgement fails as
# it does when Redis goes away between a message and its answer.
TASK = """
Path(table).touch()
with Path("order").open("a") as file:
    file.write(table + "\\n")
while not Path("go").exists():
    SystemClock().sleep_ms(10)
"""
BEFORE = """
from kombu.transport.redis import QoS
from redis.exceptions import ConnectionError

acknowledge = QoS.ack

def fail_once(self, delivery_tag):
    QoS.ack = acknowledge
    raise ConnectionError("Redis went away")

QoS.ack = fail_once
"""


@pytest.fixture
def worker(redis_server, tmp_path):
    with running_worker(redis_server.url, tmp_path, task=TASK, before=BEFORE) as process:
        yield process


@pytest.mark.usefixtures("worker")
def test_a_worker_takes_one_message_at_a_time_and_goes_on_after_a_lost_acknowledgement(redis_server, tmp_path):
    sender = WakeupSender(
        ClientSettings(store=f"file://{tmp_path / 'warehouse'}", redis_url=redis_server.url), clock=SystemClock()
    )
    app = make_app(ServiceSettings(store=f"file://{tmp_path / 'warehouse'}", redis_url=redis_server.url))
    with contextlib.closing(open_redis(redis_server.url, timeout_ms=LIMIT_MS)) as redis, contextlib.closing(app):
        for table in ("first", "second", "third"):
            app.send_task(JANITOR_VACUUM, args=[table], ignore_result=True)
        wait_until((tmp_path / "first").exists, "the first task runs")
        wait_until(lambda: "Couldn't ack" in (tmp_path / "log").read_text(), "its acknowledgement fails")
        assert redis.llen("janitor") == 2, "what the worker cannot run yet stays for other workers"
        sender.send(JANITOR_VACUUM, "command", arguments={})
        (tmp_path / "go").touch()
        wait_until((tmp_path / "third").exists, "the others run, too")
        sender.close()
    order = (tmp_path / "order").read_text().split()
    assert order[0] == "first"
    assert order.index("command") < order.index("third"), "it waits behind one wake-up, not behind all"
