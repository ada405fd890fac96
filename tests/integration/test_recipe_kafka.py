"""docs/recipes/kafka.md against librdkafka's own broker and a real front end: each message once, whatever ends when."""

import importlib.util
import json
import re
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from backports import zstd
from confluent_kafka import Consumer, Producer, TopicPartition
from icedb_client import Client
from icedb_log.errors import Unavailable
from icedb_log.ingest.staging import list_all_staged, read_staged
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_sim.rigs.frontend_rig import start_rig
from waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
MESSAGES = 40


class Killed(BaseException):
    """The process ends here."""


def load_recipe():
    spec = importlib.util.spec_from_file_location("kafka_to_icedb", ROOT / "docs/recipes/kafka/kafka_to_icedb.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def recipe(monkeypatch):
    module = load_recipe()
    monkeypatch.setattr(module, "WAIT_S", 0.2)
    # This broker takes a consumer that has left for one that is silent, and waits for it.
    monkeypatch.setattr(module, "Consumer", lambda options: Consumer(options | {"session.timeout.ms": 5000}))
    return module


@pytest.fixture(scope="module")
def kafka():
    """The addresses of a broker that lives in this process and speaks Kafka over loopback."""
    broker = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0})
    yield ",".join(f"{each.host}:{each.port}" for each in broker.list_topics(timeout=LIMIT_S).brokers.values())
    del broker


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    rig = start_rig(tmp_path_factory.mktemp("kafka") / "store")
    yield rig
    rig.frontend.stop()


@pytest.fixture
def topic(rig, request):
    """A topic of this test, and its table."""
    name = "t" + re.sub(r"\W+", "_", request.node.name)[-40:].strip("_")
    create_table(rig.warehouse.table(name), TableConfig.create(name=name))
    return name


@pytest.fixture
def send(kafka, topic):
    """Produce messages 0 to MESSAGES into two partitions."""
    producer = Producer({"bootstrap.servers": kafka})
    sent = [f'{{"n":\n{n}}}'.encode() for n in range(MESSAGES)]
    for n, value in enumerate(sent):
        producer.produce(topic, value=value, partition=n % 2)
    producer.produce(topic, value=None, key=b"tombstone", partition=0)
    assert producer.flush(LIMIT_S) == 0
    return sent


def rows_of(rig, topic):
    rows = Counter()
    for batch in list_all_staged(rig.warehouse.table(topic)).batches:
        body = read_staged(rig.store, batch)
        lines = zstd.decompress(body) if batch.format.endswith(".zst") else body
        rows.update(json.loads(line)["n"] for line in lines.splitlines())
    return rows


def forward(recipe, kafka, rig, topic):
    """Run the program until its group has read all; ``Killed`` ends it before."""
    with (
        closing(recipe.open_consumer(kafka, "forwarders")) as consumer,
        Client(f"http://127.0.0.1:{rig.frontend.port}") as client,
    ):
        forwarder = recipe.Forwarder(consumer, client, [topic])
        while not is_read(consumer, topic):
            forwarder.step()


def is_read(consumer, topic):
    places = [TopicPartition(topic, partition) for partition in range(2)]
    committed = consumer.committed(places, timeout=LIMIT_S)
    ends = [consumer.get_watermark_offsets(place, timeout=LIMIT_S)[1] for place in places]
    return [(each.offset, each.metadata or "") for each in committed] == [(end, "") for end in ends]


def expect_once(rig, topic):
    assert rows_of(rig, topic) == dict.fromkeys(range(MESSAGES), 1)


def test_every_message_becomes_a_row(recipe, kafka, rig, topic, send):
    forward(recipe, kafka, rig, topic)
    expect_once(rig, topic)


@pytest.mark.parametrize("sent_before", [False, True], ids=["before_it_is_sent", "after_it_is_sent"])
def test_who_takes_over_sends_the_batch_that_was_begun(recipe, kafka, rig, topic, send, monkeypatch, sent_before):
    enqueue = Client.enqueue

    def die(*arguments, **options):
        if sent_before:
            enqueue(*arguments, **options)
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(recipe, "MAX_BATCH_BYTES", 50)
        dying.setattr(Client, "enqueue", die)
        with pytest.raises(Killed):
            forward(recipe, kafka, rig, topic)
    forward(recipe, kafka, rig, topic)  # with other bounds: what was begun ends where it did
    expect_once(rig, topic)


def test_a_lost_answer_is_asked_for_again(recipe, kafka, rig, topic, send, monkeypatch):
    enqueue, lost = Client.enqueue, []

    def lose(*arguments, **options):
        found = enqueue(*arguments, **options)
        if not lost:
            lost.append(options["key"])
            raise Unavailable("the answer was lost")
        return found

    monkeypatch.setattr(Client, "enqueue", lose)
    monkeypatch.setattr(recipe.time, "sleep", lambda _: None)
    forward(recipe, kafka, rig, topic)
    assert lost
    expect_once(rig, topic)
