"""Who asks for the live files of a table, again and again: through the snapshot service.

All but ``icedb-bytes`` end with one value for each file in the caller's language: a message, an object, a path.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from icedb_client import Client
from icedb_proto import snapshot_pb2 as pb

from bench.figures import EMBEDDED
from bench.snapshot_tables import TABLE

METHOD: Final = "/icedb.v1.SnapshotService/GetSnapshot"
MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
TIMEOUT_S: Final = 120


@dataclass(slots=True)
class StubCaller:
    """The stub that protoc makes: an answer is a message that has been parsed.

    Attributes:
        address: Of the service.
        name: What it is called.
        where: A condition, which prunes on the server.
        day: A partition.
        max_staleness_ms: ``None``: the server's default.
        is_parsed: Whether the answer is parsed; if not, it is bytes, and the files are counted in the first call only.
        is_columnar: Whether files are named in record batches.
    """

    address: str
    name: str = "icedb"
    where: str | None = None
    day: str | None = None
    max_staleness_ms: int | None = None
    is_parsed: bool = True
    is_columnar: bool = False
    _channel: Any = field(default=None, init=False)
    _method: Any = field(default=None, init=False)
    _file_count: int = field(default=-1, init=False)

    def open(self) -> None:
        """Open a channel."""
        options = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0))
        self._channel = grpc.insecure_channel(self.address, options=options)
        parse = pb.GetSnapshotResponse.FromString if self.is_parsed else None
        serialize = pb.GetSnapshotRequest.SerializeToString
        self._method = self._channel.unary_unary(METHOD, request_serializer=serialize, response_deserializer=parse)

    def call(self) -> int:
        """Ask."""
        answer = self.ask()
        if self.is_parsed:
            return len(answer.files)
        if self._file_count < 0:
            self._file_count = pb.GetSnapshotResponse.FromString(answer).file_count
        return self._file_count

    def ask(self) -> Any:
        """Return an answer: a message, or its bytes."""
        filters = [pb.PartitionFilter(field="d", equals=self.day)] if self.day is not None else []
        request = pb.GetSnapshotRequest(
            table=TABLE,
            where=self.where,
            partition_filters=filters,
            max_staleness_ms=self.max_staleness_ms,
            columnar=self.is_columnar,
        )
        return self._method(request, timeout=TIMEOUT_S)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


@dataclass(slots=True)
class ClientCaller:
    """``icedb_client``: an answer is an object for each file, or a table of Arrow."""

    address: str
    name: str = "icedb-client"
    is_columnar: bool = False
    _client: Any = field(default=None, init=False)

    def open(self) -> None:
        """Open a client."""
        self._client = Client(snapshot_address=self.address)

    def call(self) -> int:
        """Ask."""
        files = self._client.snapshot(TABLE, columnar=self.is_columnar).files
        return files.to_arrow().num_rows if self.is_columnar else len(files)

    def close(self) -> None:
        """Close it."""
        self._client.close()


@dataclass(slots=True)
class EmbeddedCaller:
    """``icedb_client`` that reads the store itself, as peers do: each call lists the log, and gives an address a file.

    Attributes:
        store: Of the warehouse.
        where: A condition, which prunes.
        day: A partition.
    """

    store: str
    where: str | None = None
    day: str | None = None
    name: str = EMBEDDED
    _client: Any = field(default=None, init=False)

    def open(self) -> None:
        """Open a client."""
        self._client = Client(store=self.store)

    def call(self) -> int:
        """List."""
        partitions = None if self.day is None else {"d": self.day}
        return len(self._client.snapshot(TABLE, where=self.where, partitions=partitions, max_staleness_ms=0).files.uris)

    def close(self) -> None:
        """Close it."""
        self._client.close()


def uri_of(folder: Path) -> str:
    """Return how delta-rs and PyIceberg spell a folder."""
    return f"file://{folder}"
