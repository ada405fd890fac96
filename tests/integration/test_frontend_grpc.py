"""The gRPC door on loopback: status codes with retry times, streams with flow control, health, reflection, stopping."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from backports import zstd
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status
from icedb_log.clock import make_uuid7_hex, new_batch_id, parse_uuid7_ms
from icedb_log.errors import Unavailable
from icedb_log.ingest.pressure import HALTED, Pressure, end_trouble, publish_pressure, publish_trouble
from icedb_log.store.table_store import TableStore
from icedb_log.units import MINUTE_MS
from icedb_proto import ingest_pb2 as pb
from icedb_proto import ingest_pb2_grpc
from icedb_sim.rigs.frontend_rig import CLOCK, LIMIT_S, start_rig
from waiting import wait_until

SERVICE = "icedb.v1.IngestService"
LINES = b'{"a":1}\n'
IN_FLIGHT = 3
MIB = 2**20
CODE = grpc.StatusCode


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("icedb_ingest.frontend.grpc_endpoint.STREAM_IN_FLIGHT", IN_FLIGHT)
        rig = start_rig(tmp_path_factory.mktemp("grpc") / "store", frontend_max_batch_mb=2, frontend_memory_mb=64)
        yield rig
        rig.frontend.stop()


@pytest.fixture
def rig(shared):
    wait_until(lambda: shared.metric("icedb_frontend_held_bytes") == 0)  # what the test before left under way
    shared.clear()
    yield shared
    shared.store.gate.set()


@pytest.fixture(scope="module")
def channel(shared):
    with connect(shared) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel):
    return ingest_pb2_grpc.IngestServiceStub(channel)


def connect(rig):
    return grpc.insecure_channel(
        f"127.0.0.1:{rig.frontend.grpc_port}", options=(("grpc.max_send_message_length", 64 * MIB),)
    )


def request(data=LINES, **fields):
    return pb.AppendRequest(**{"table": "events", "format": pb.FORMAT_NDJSON, "data": data, **fields})


def is_refused(stub):
    try:
        stub.Append(request(), timeout=LIMIT_S)
    except grpc.RpcError:
        return True
    return False


def refusal(stub, message):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Append(message, timeout=LIMIT_S)
    return caught.value


def test_an_acknowledged_batch_is_staged_under_its_id(rig, stub):
    batch_id = new_batch_id(CLOCK)
    for _ in range(2):
        answer = stub.Append(request(batch_id=batch_id), timeout=LIMIT_S)
        assert answer == pb.AppendResponse(batch_id=batch_id, table="events", staged_bytes=len(LINES))
    assert rig.staged() == {f"{batch_id}.ndjson": LINES}
    chosen = stub.Append(request(), timeout=LIMIT_S).batch_id
    assert abs(parse_uuid7_ms(chosen) - CLOCK.now_ms()) < LIMIT_S * 1000
    wait_until(lambda: "events" in rig.woken)


def test_the_answer_of_a_table_whose_flushes_fail_says_so(rig, stub):
    table = TableStore(rig.store, rig.warehouse.table("events").paths)
    assert stub.Append(request(), timeout=LIMIT_S).warning == ""
    publish_trouble(table, "failing", "nobody foresaw this", clock=CLOCK)
    wait_until(lambda: stub.Append(request(), timeout=LIMIT_S).warning)
    words = "table events takes batches, but its flushes fail, so that they wait: nobody foresaw this"
    assert stub.Append(request(), timeout=LIMIT_S).warning == words
    assert [one.warning for one in stub.AppendStream(iter([request(), request()]), timeout=LIMIT_S)] == [words] * 2
    end_trouble(table)
    wait_until(lambda: not stub.Append(request(), timeout=LIMIT_S).warning)


@pytest.mark.parametrize(
    ("fields", "suffix"),
    [
        ({"format": pb.FORMAT_NDJSON}, "ndjson"),
        ({"format": pb.FORMAT_JSON, "data": b"[{}]"}, "json"),
        ({"format": pb.FORMAT_CSV, "data": b"a\n1\n"}, "csv"),
        ({"format": pb.FORMAT_PARQUET, "data": b"PAR1........PAR1"}, "parquet"),
        ({"format": pb.FORMAT_ARROW, "data": b"ARROW1..ARROW1"}, "arrow"),
        ({"compression": pb.COMPRESSION_ZSTD, "data": zstd.compress(LINES)},
         "ndjson.zst"),
    ],
)  # fmt: skip
def test_every_format(rig, stub, fields, suffix):
    stub.Append(request(**fields), timeout=LIMIT_S)
    (name,) = rig.staged()
    assert name.partition(".")[2] == suffix


@pytest.mark.parametrize(
    ("code", "kind", "fields"),
    [
        (CODE.NOT_FOUND, "TableNotFound", {"table": "nope"}),
        (CODE.INVALID_ARGUMENT, "InvalidRequest", {"table": ""}),
        (CODE.INVALID_ARGUMENT, "InvalidRequest", {"format": pb.FORMAT_UNSPECIFIED}),
        (CODE.INVALID_ARGUMENT, "InvalidRequest", {"format": 99}),
        (CODE.INVALID_ARGUMENT, "InvalidRequest", {"compression": 99}),
        (CODE.INVALID_ARGUMENT, "InvalidRequest", {"compression": pb.COMPRESSION_GZIP, "format": pb.FORMAT_PARQUET}),
        (CODE.INVALID_ARGUMENT, "InvalidRequest", {"batch_id": "seven"}),
        (CODE.INVALID_ARGUMENT, "InvalidRequest", {"batch_id": ""}),
        (CODE.INVALID_ARGUMENT, "InvalidRequest", {"data": b""}),
        (CODE.INVALID_ARGUMENT, "InvalidRequest", {"data": b"[1]"}),
        (CODE.INVALID_ARGUMENT, "InvalidRequest", {"data": b"{" * (2 * MIB + 1)}),
    ],
)
def test_what_is_wrong_has_a_code_and_a_kind(rig, stub, code, kind, fields):
    error = refusal(stub, request(**fields))
    assert (error.code(), dict(error.trailing_metadata())["icedb-error"]) == (code, kind)
    assert error.details()
    assert rig.staged() == {}


def test_an_id_that_is_too_old_or_was_used_is_refused(rig, stub):
    hexed = make_uuid7_hex(CLOCK.now_ms() - 11 * MINUTE_MS, 1)
    old = "-".join((hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:]))
    assert refusal(stub, request(batch_id=old)).code() is CODE.INVALID_ARGUMENT
    used = stub.Append(request(), timeout=LIMIT_S).batch_id
    error = refusal(stub, request(b'{"a":2}', batch_id=used))
    assert error.code() is CODE.INVALID_ARGUMENT
    assert "other content" in error.details()


def test_a_message_beyond_the_servers_limit_is_refused_without_a_retry_time(rig, stub):
    error = refusal(stub, request(b"{" * (3 * MIB)))
    assert error.code() is CODE.RESOURCE_EXHAUSTED
    assert "retry-after-ms" not in dict(error.trailing_metadata() or ())


def test_pressure_there_and_back(rig, stub):
    paths = rig.warehouse.table("events").paths
    stop = Pressure("stop", 60.0, "801 log files: batches are refused from 800 on", 12_000)
    publish_pressure(TableStore(rig.store, paths), stop, clock=CLOCK)
    wait_until(lambda: is_refused(stub))
    error = refusal(stub, request())
    assert error.code() is CODE.RESOURCE_EXHAUSTED
    assert "801 log files" in error.details()
    metadata = dict(error.trailing_metadata())
    assert (metadata["retry-after-ms"], metadata["icedb-error"]) == ("12000", "Overloaded")
    (detail,) = rpc_status.from_call(error).details
    info = error_details_pb2.RetryInfo()
    assert detail.Unpack(info)
    assert info.retry_delay.ToMilliseconds() == 12_000
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.AppendStream(iter([request()]), timeout=LIMIT_S))
    assert caught.value.code() is CODE.RESOURCE_EXHAUSTED
    publish_pressure(TableStore(rig.store, paths), Pressure(), clock=CLOCK)
    wait_until(lambda: not is_refused(stub))


def test_a_halted_table_is_a_failed_precondition_with_the_reason(rig, stub):
    paths = rig.warehouse.table("events").paths
    publish_trouble(TableStore(rig.store, paths), HALTED, "column 'ts' is BIGINT in the log", clock=CLOCK)
    wait_until(lambda: is_refused(stub))
    error = refusal(stub, request())
    assert error.code() is CODE.FAILED_PRECONDITION
    assert "table events is halted" in error.details()
    assert "column 'ts' is BIGINT in the log" in error.details()
    assert dict(error.trailing_metadata())["icedb-error"] == "TableHalted"
    publish_pressure(TableStore(rig.store, paths), Pressure(), clock=CLOCK, ends_trouble=True)
    wait_until(lambda: not is_refused(stub))


def test_a_store_that_is_down_is_unavailable_and_a_bug_is_internal(rig, stub, monkeypatch):
    for failure, code in (
        (Unavailable("the store is down"), CODE.UNAVAILABLE),
        (ZeroDivisionError("x"), CODE.INTERNAL),
    ):

        def fail(key, body, failure=failure):
            raise failure

        monkeypatch.setattr(rig.store, "put_if_absent", fail)
        error = refusal(stub, request())
        assert error.code() is code
        assert (code is CODE.INTERNAL) == ("its log has the reason" in error.details())


def test_a_call_that_runs_out_of_time_may_be_sent_again(rig, stub):
    rig.store.gate.clear()
    batch_id = new_batch_id(CLOCK)
    for timeout_s in (0.2, 2, 20, 200):  # on a busy machine a call may be over before the store hears of it
        with pytest.raises(grpc.RpcError) as caught:
            stub.Append(request(batch_id=batch_id), timeout=timeout_s)
        assert caught.value.code() is CODE.DEADLINE_EXCEEDED
        if rig.store.put_count:
            break
    # the client's time may be over before the server's: the store answers only after the server has noticed
    wait_until(lambda: rig.metric("icedb_frontend_batches_total", door="grpc", outcome="abandoned") >= 1)
    rig.store.gate.set()
    stub.Append(request(batch_id=batch_id), timeout=LIMIT_S)
    assert list(rig.staged()) == [f"{batch_id}.ndjson"]


# ---- streams ----------------------------------------------------------------------------------------------------


def test_a_stream_has_an_answer_for_each_batch_in_order(rig, stub):
    ids = [new_batch_id(CLOCK) for _ in range(50)]
    answers = list(stub.AppendStream((request(batch_id=batch_id) for batch_id in ids), timeout=LIMIT_S))
    assert [answer.batch_id for answer in answers] == ids
    assert {name.partition(".")[0] for name in rig.staged()} == set(ids)
    wait_until(lambda: rig.metric("icedb_frontend_streams") == 0)


def test_an_answer_comes_before_the_next_request_is_sent(rig, stub):
    answered = threading.Semaphore(0)

    def requests():
        for _ in range(3):
            yield request()
            assert answered.acquire(timeout=LIMIT_S)

    for _ in stub.AppendStream(requests(), timeout=LIMIT_S):
        answered.release()
    assert len(rig.staged()) == 3


def test_flow_control_stops_a_sender_while_the_store_hangs(rig, stub):
    """With the store shut, the server takes its few batches and reads no further: the sender gets stuck."""
    rig.store.gate.clear()
    count, sent = 40, []

    def requests():
        for number in range(count):
            sent.append(number)
            yield request(b'{"a":"' + b"x" * MIB + b'"}')

    with ThreadPoolExecutor(1) as pool:
        stream = stub.AppendStream(requests(), timeout=LIMIT_S)
        reading = pool.submit(list, stream)
        wait_until(lambda: rig.store.put_count == IN_FLIGHT)
        time.sleep(0.5)  # time in which a sender that is not stopped would be through
        assert rig.store.put_count == IN_FLIGHT
        assert len(sent) < 2 * IN_FLIGHT + 8, "the transport's window holds a few messages, not all"
        assert rig.metric("icedb_frontend_held_bytes") <= (IN_FLIGHT + 1) * 1.1 * MIB
        rig.store.gate.set()
        assert len(reading.result(LIMIT_S)) == count
    assert len(rig.staged()) == count


def test_a_stream_ends_with_the_first_batch_that_is_refused(rig, stub):
    batches = [request(), request(), request(b"[1]"), request()]
    answers = []
    stream = stub.AppendStream(iter(batches), timeout=LIMIT_S)
    with pytest.raises(grpc.RpcError) as caught:
        for answer in stream:
            answers.append(answer)
    assert caught.value.code() is CODE.INVALID_ARGUMENT
    assert len(answers) == 2
    assert {answer.batch_id for answer in answers} <= {name.partition(".")[0] for name in rig.staged()}


def test_a_stream_that_its_sender_cancels_leaves_nothing_behind(rig, stub):
    rig.store.gate.clear()
    ids = [new_batch_id(CLOCK) for _ in range(3)]
    stream = stub.AppendStream((request(batch_id=batch_id) for batch_id in ids), timeout=LIMIT_S)
    wait_until(lambda: rig.metric("icedb_frontend_in_flight_batches", door="grpc") == IN_FLIGHT)
    wait_until(lambda: rig.store.put_count)
    wait_until(lambda: rig.metric("icedb_frontend_streams") == 1)
    stream.cancel()
    wait_until(lambda: rig.metric("icedb_frontend_streams") == 0)
    rig.store.gate.set()
    wait_until(lambda: rig.metric("icedb_frontend_in_flight_batches", door="grpc") == 0)
    wait_until(lambda: rig.metric("icedb_frontend_held_bytes") == 0)  # a body that was sent keeps its room until then
    list(stub.AppendStream((request(batch_id=batch_id) for batch_id in ids), timeout=LIMIT_S))
    assert {name.partition(".")[0] for name in rig.staged()} == set(ids)


# ---- the server -------------------------------------------------------------------------------------------------


def test_health_and_reflection(rig, channel):
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        wait_until(
            lambda name=name: (
                health.Check(health_pb2.HealthCheckRequest(service=name), timeout=LIMIT_S).status
                == health_pb2.HealthCheckResponse.SERVING
            )
        )
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    (answer,) = reflection.ServerReflectionInfo(asked, timeout=LIMIT_S)
    assert SERVICE in {service.name for service in answer.list_services_response.service}


def test_calls_above_the_bound_are_refused_and_stopping_answers_what_runs(tmp_path):
    rig = start_rig(tmp_path / "store", frontend_max_calls=2)
    with connect(rig) as channel, ThreadPoolExecutor(3) as pool:
        stub = ingest_pb2_grpc.IngestServiceStub(channel)
        rig.store.gate.clear()
        unary = stub.Append.future(request(), timeout=LIMIT_S)
        assert rig.store.arrived.acquire(timeout=LIMIT_S)
        closing = threading.Event()

        def requests():
            yield request()
            closing.wait(LIMIT_S)  # a sender that keeps its stream open

        stream = stub.AppendStream(requests(), timeout=LIMIT_S)
        assert rig.store.arrived.acquire(timeout=LIMIT_S)
        assert refusal(stub, request()).code() is CODE.RESOURCE_EXHAUSTED
        stopping = pool.submit(rig.frontend.stop)
        time.sleep(0.1)
        rig.store.gate.set()
        ids = {unary.result(LIMIT_S).batch_id}
        with pytest.raises(grpc.RpcError) as caught:
            for answer in stream:
                ids.add(answer.batch_id)
        closing.set()
        stopping.result(LIMIT_S)
    assert caught.value.code() is CODE.UNAVAILABLE
    assert "stopping" in caught.value.details()
    assert {name.partition(".")[0] for name in rig.staged()} == ids
    assert len(ids) == 2
