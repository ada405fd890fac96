"""gRPC requests: random and mutated bytes, and odd messages, at every method of both services, on real servers.

Whatever comes, the answer is a status that says whose fault it is: never INTERNAL or UNKNOWN, and no traceback in the
logs. A good call is answered afterwards.
"""

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import event, example, given
from hypothesis import strategies as st
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.warehouse import Warehouse
from icedb_proto import ingest_pb2, snapshot_pb2
from icedb_sim.rigs.frontend_rig import start_rig
from icedb_sim.rigs.snapshot_rig import start_snapshot
from icedb_sim.tables.profiles import fuzz_examples
from icedb_sim.tables.small_table import SmallTable

DEADLINE_S = 240
STREAM_S = 0.3
CODE = grpc.StatusCode
FINE = {
    CODE.OK, CODE.INVALID_ARGUMENT, CODE.NOT_FOUND, CODE.OUT_OF_RANGE, CODE.FAILED_PRECONDITION, CODE.ABORTED,
    CODE.RESOURCE_EXHAUSTED, CODE.ALREADY_EXISTS,
}  # fmt: skip
ENDLESS = {"WatchSnapshots"}
METHODS = [
    method
    for module, service in ((ingest_pb2, "IngestService"), (snapshot_pb2, "SnapshotService"))
    for method in module.DESCRIPTOR.services_by_name[service].methods
]


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    rig = start_rig(tmp_path_factory.mktemp("grpc") / "store", frontend_max_batch_mb=1, frontend_memory_mb=32)
    table = SmallTable(name="events")
    for number in range(3):
        table.append(number, p="ab"[number % 2])
    snapshot = start_snapshot(Warehouse(table.store, "wh"), snapshot_watch_interval_ms=20, snapshot_max_staleness_ms=0)
    yield {"IngestService": rig.frontend.grpc_port, "SnapshotService": snapshot.port}
    snapshot.stop()
    rig.frontend.stop()


@pytest.fixture(scope="module")
def channels(ports):
    found = {name: grpc.insecure_channel(f"127.0.0.1:{port}") for name, port in ports.items()}
    yield found
    for channel in found.values():
        channel.close()


def call(channels, method, bodies, timeout=DEADLINE_S):
    """Send requests as bytes; return the status and the details."""
    service = method.containing_service
    path, channel = f"/{service.full_name}/{method.name}", channels[service.name]
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    answers = getattr(channel, kind)(path, request_serializer=None, response_deserializer=None)
    request = iter(bodies) if method.client_streaming else bodies[0]
    try:
        found = answers(request, timeout=timeout)
        if method.server_streaming:
            list(found)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return CODE.OK, ""


def check(channels, method, bodies):
    code, details = call(channels, method, bodies, STREAM_S if method.name in ENDLESS else DEADLINE_S)
    event(f"{method.name}: {code.name}")
    fine = FINE | ({CODE.DEADLINE_EXCEEDED} if method.name in ENDLESS else set())
    assert code in fine, (method.name, bodies, code, details)
    assert code == CODE.OK or 0 < len(details) < 4000


def check_that_it_lives(channels):
    append = ingest_pb2.AppendRequest(
        table="events", batch_id=new_batch_id(SystemClock()), format=ingest_pb2.FORMAT_NDJSON, data=b'{"a":1}\n'
    )
    for name, body in (("Append", append), ("GetSnapshot", snapshot_pb2.GetSnapshotRequest(table="events"))):
        method = next(each for each in METHODS if each.name == name)
        assert call(channels, method, [body.SerializeToString()]) == (CODE.OK, "")


TEXTS = st.one_of(
    st.sampled_from([
        "events", "events", "events", "nope", "", "../events", "events/", "EVENTS", "e" * 5000, "p", "a", "\x00", "é",
        "id = 1", "id = 1 OR", "id IN (1, 2) AND p = 'a'", "(" * 5000, "array[" * 40 + "]" * 40, "id = 1; DROP TABLE x",
        "p LIKE '" + "%a" * 1000 + "'", "id < 1e400", "0x", "*", "[" * 100, "[z-a]", "2026-01-01", "9" * 30, "-1",
        "1700000000000_0c", "latest", "018bcfe5-6800-7a4a-b39f-cbe7cb116932", "sum(id) > 1", "id = (SELECT 1)", "id = ?",
        "random() < 0.5", "CAST(p AS DATE) = '0000-01-01'", "ts BETWEEN 1 AND", "p = '\ud7ff'", "p ~ '(a+)+$'",
    ]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)  # fmt: skip
INTEGERS = st.sampled_from([0, 1, -1, 2, 1000, 2**31 - 1, -(2**31)])
LONGS = st.one_of(INTEGERS, st.sampled_from([1_700_000_000_000, 2**63 - 1, -(2**63), 9_999_999_999_999, 10**13, 2**53]))
BYTES = st.one_of(st.binary(max_size=50), st.sampled_from([b'{"a":1}\n', b"\x1f\x8b", b"PAR1PAR1", b"[" * 5000]))


def fields_of(descriptor):
    """Return a strategy of messages of a type, every field of which may be there."""
    by_kind = {
        FieldDescriptor.TYPE_STRING: TEXTS,
        FieldDescriptor.TYPE_BYTES: BYTES,
        FieldDescriptor.TYPE_INT64: LONGS,
        FieldDescriptor.TYPE_INT32: INTEGERS,
        FieldDescriptor.TYPE_BOOL: st.booleans(),
        FieldDescriptor.TYPE_ENUM: st.sampled_from([0, 1, 2, 3, 4, 5, 6, 99]),
    }
    optional = {}
    for field in descriptor.fields:
        kind = fields_of(field.message_type) if field.message_type else by_kind[field.type]
        optional[field.name] = st.lists(kind, max_size=4) if field.is_repeated else kind
    return st.fixed_dictionaries({}, optional=optional).map(lambda given: _build(descriptor, given))


def _build(descriptor, given):
    return GetMessageClass(descriptor)(**given)


@st.composite
def good_calls(draw):
    method = draw(st.sampled_from(METHODS))
    message = draw(fields_of(method.input_type))
    if hasattr(message, "table") and draw(st.integers(0, 3)):
        message.table = "events"
    return method, message


def mutate(body, edits):
    for at, inserted, removed in edits:
        place = at % (len(body) + 1)
        body = body[:place] + inserted + body[place + removed :]
    return body


EDITS = st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=4), st.integers(0, 3)), max_size=4)


@fuzz_examples(220)
@given(good_calls())
def test_an_odd_message_has_an_answer_that_says_whose_fault_it_is(channels, called):
    method, message = called
    check(channels, method, [message.SerializeToString()])


@fuzz_examples(150)
@given(good_calls(), EDITS)
@example((METHODS[0], ingest_pb2.AppendRequest()), [(0, b"\x0a\x05\xff", 0)])
def test_bytes_that_are_no_message_are_the_callers_fault(channels, called, edits):
    method, message = called
    body = mutate(message.SerializeToString(), edits)
    check(channels, method, [body, body])


def test_both_services_answer_after_all_that(channels):
    check_that_it_lives(channels)


@pytest.mark.parametrize("method", METHODS, ids=[each.name for each in METHODS])
def test_what_cannot_be_parsed_is_an_invalid_argument(channels, method):
    code, details = call(channels, method, [b"\x0a\x05\xff"])
    assert code == CODE.INVALID_ARGUMENT
    assert "3 bytes cannot be parsed" in details
