"""Sends the messages of Kafka topics, one JSON object each, into the tables of the same names: each message once.

    ICEDB_ADDRESS=https://events.example.com ICEDB_TOKEN_FILE=/run/secrets/icedb \
        python kafka_to_icedb.py KAFKA:9092 GROUP TOPIC...

Run as many of it as there are partitions. Whatever goes wrong ends it: let a supervisor start it again.

A batch is written down in Kafka before it is sent: the group's committed offset is its first message, the metadata of
that commit is where it ends. Whoever takes the partition over, after whatever ended here, reads the same messages,
sends them under the same key, and the front end takes them once. The batch is crossed out when it is answered.
"""

import sys
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, Message, TopicPartition
from icedb_client import Client
from icedb_log.errors import Overloaded, Unavailable

MAX_MESSAGES = 10_000
MAX_BATCH_BYTES = 8 * 1024 * 1024
WAIT_S = 1.0
ANSWER_TIMEOUT_S = 30.0

Partition = tuple[str, int]


class Forwarder:
    """Reads the partitions that Kafka assigns to it, and sends what comes."""

    def __init__(self, consumer: Consumer, client: Client, topics: Sequence[str]) -> None:
        self._consumer = consumer
        self._client = client
        self._begun: dict[Partition, tuple[int, int]] = {}  # the first message and the end of a batch that is begun
        self._read: dict[Partition, list[Message]] = {}
        consumer.subscribe(list(topics), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def step(self) -> None:
        """Read for a while, and send what came. Raises whatever goes wrong."""
        for message in self._consumer.consume(MAX_MESSAGES, timeout=WAIT_S):
            if message.error():
                raise RuntimeError(message.error())
            self._read.setdefault((message.topic(), message.partition()), []).append(message)
        for partition in list(self._read):
            while self._send(partition):
                pass

    def _send(self, partition: Partition) -> bool:
        """Send the next batch of a partition; return whether there was one."""
        messages = self._read[partition]
        if not messages:
            return False
        first, end = self._begun.get(partition) or (messages[0].offset(), find_end(messages))
        if messages[-1].offset() < end - 1:
            return False  # the rest of what was begun is still to come
        values = [each.value() for each in messages if each.offset() < end]
        rows = b"\n".join(value.replace(b"\n", b" ") for value in values if value)
        self._commit(partition, first, metadata=str(end))
        if rows:
            self._deliver(partition[0], rows, key=f"kafka {partition[0]}/{partition[1]} {first}-{end}")
        self._commit(partition, end, metadata="")
        self._begun.pop(partition, None)
        self._read[partition] = [each for each in messages if each.offset() >= end]
        return True

    def _deliver(self, table: str, rows: bytes, *, key: str) -> None:
        while True:
            try:
                self._client.enqueue(table, rows, key=key, data_format="ndjson")
            except (Overloaded, Unavailable) as error:
                time.sleep((getattr(error, "retry_after_ms", None) or 1000) / 1000)
            else:
                return

    def _commit(self, partition: Partition, offset: int, *, metadata: str) -> None:
        """Write down where a partition is. Raises if it is no longer ours."""
        answers = self._consumer.commit(offsets=[TopicPartition(*partition, offset, metadata)], asynchronous=False)
        for answer in answers:
            if answer.error:
                raise RuntimeError(answer.error)

    def _assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        for found in consumer.committed(assigned, timeout=ANSWER_TIMEOUT_S):
            if found.metadata:
                self._begun[found.topic, found.partition] = found.offset, int(found.metadata)

    def _revoke(self, _consumer: Consumer, revoked: list[TopicPartition]) -> None:
        for each in revoked:
            self._begun.pop((each.topic, each.partition), None)
            self._read.pop((each.topic, each.partition), None)


def find_end(messages: Sequence[Message]) -> int:
    """Return the offset before which a batch ends that begins with these messages."""
    size_bytes = 0
    for index, message in enumerate(messages):
        size_bytes += len(message.value() or b"")
        if size_bytes > MAX_BATCH_BYTES and index:
            return message.offset()
    return messages[-1].offset() + 1


def open_consumer(servers: str, group: str) -> Consumer:
    """Return a consumer that commits nothing by itself."""
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
        }
    )


if __name__ == "__main__":
    consumer = open_consumer(*sys.argv[1:3])
    try:
        with Client() as client:
            forwarder = Forwarder(consumer, client, sys.argv[3:])
            while True:
                forwarder.step()
    finally:
        consumer.close()
