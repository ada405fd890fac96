"""What a worker sends to its own queue passes the guard of its own queue."""

import pytest
from celery import Celery
from icedb_log.names import JANITOR_VACUUM, MERGE_MERGE
from icedb_service.celery_app import make_app
from icedb_service.message_guard import find_problem
from icedb_service.settings import ServiceSettings
from icedb_service.wakeup import Wakeups


class OpenRedis:
    """Nobody else is waking anything."""

    def set(self, *_args, **_kwargs):
        return True

    def delete(self, *_args):
        return 1


@pytest.fixture
def app() -> Celery:
    """The janitor's application, with tasks of its own, on a broker in memory."""
    app = make_app(ServiceSettings(store="file:///tmp/w"), "janitor")
    app.conf.update(broker_url="memory://", broker_transport_options={}, result_backend="cache+memory://")

    def vacuum(table):
        """Do nothing."""

    app.task(vacuum, name=JANITOR_VACUUM, shared=False)
    app.finalize()
    yield app
    app.close()


@pytest.mark.parametrize(("task", "queue"), [(JANITOR_VACUUM, "janitor"), (MERGE_MERGE, "merge")])
def test_a_sweep_wakes_tasks_of_its_own_worker(app, task, queue):
    settings = ServiceSettings(store="file:///tmp/w")
    Wakeups(app, OpenRedis(), settings=settings).wake(task, "events")
    with app.connection_for_read() as connection:
        message = connection.default_channel.basic_get(queue, no_ack=True)
    assert message is not None
    assert find_problem(message, known={task}) is None
