"""Both services behind one access file, and calls of any of their methods."""

import contextlib

import grpc
from google.protobuf import message_factory
from icedb_log.keys import clock_key
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_sim.rigs.frontend_rig import CLOCK, LIMIT_S, start_rig
from icedb_sim.rigs.snapshot_rig import start_snapshot

CODE = grpc.StatusCode
TABLE = "events"
SECRET_TABLE = "payroll"
ALL, READER, WRITER, STRANGER, SLOW = TOKENS = tuple(
    f"icedbt_{name}-0123456789abcdef" for name in ("all", "reader", "writer", "stranger", "slow")
)
ROW = b'{"a":1}\n'


class CountingStore(LocalObjectStore):
    """Counts requests that name a table; whether the store answers, services look all the time."""

    asked = 0

    def get(self, key, **conditions):
        self.asked += key != clock_key("")
        return super().get(key, **conditions)

    def list_page(self, prefix, *, token=None, limit=1000):
        self.asked += 1
        return super().list_page(prefix, token=token, limit=limit)


class Servers:
    """Both services."""

    def __init__(self, store, folder, name, **fields):
        self.snapshot = start_snapshot(Warehouse(store), clock=CLOCK, **fields)
        self.settings = self.snapshot.service.parts.settings
        self.rig = start_rig(folder / name, **fields)
        own = self.rig.warehouse
        create_table(own.table(SECRET_TABLE), TableConfig.create(name=SECRET_TABLE))
        self.ports = {"SnapshotService": self.snapshot.port, "IngestService": self.rig.frontend.grpc_port}

    def stop(self):
        self.rig.frontend.stop()
        self.snapshot.stop()


def request_for(method, table):
    kind = message_factory.GetMessageClass(method.input_type)
    fields = method.input_type.fields_by_name
    request = kind(**({"table": table} if "table" in fields else {"tables": [table]} if "tables" in fields else {}))
    for name, value in {"ttl_ms": 60_000, "from_ms": 1, "data": ROW, "format": 1, "lease_id": "0" * 32}.items():
        if name in fields:
            setattr(request, name, value)
    return request


def call(servers, method, table, metadata=(), channel=None):
    """Return (code, details, trailing metadata) of a call's end, or of its first message."""
    service = method.containing_service
    answer = message_factory.GetMessageClass(method.output_type)
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    with contextlib.ExitStack() as stack:
        if channel is None:
            channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{servers.ports[service.name]}"))
        make = getattr(channel, kind)(
            f"/{service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        request = request_for(method, table)
        try:
            result = make(iter([request]) if method.client_streaming else request, timeout=LIMIT_S, metadata=metadata)
            if method.server_streaming:
                first = next(result)
                result.cancel()
                return CODE.OK, first, ()
        except grpc.RpcError as error:
            ended = [(key, value) for key, value in error.trailing_metadata() or () if key != "retry-after-ms"]
            return error.code(), error.details(), ended
        return CODE.OK, result, ()


def bearer(token):
    return (("authorization", f"Bearer {token}"),)
