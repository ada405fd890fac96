"""The committed stubs are what the .proto files say, and carry the protocol's own names."""

import importlib.util
from pathlib import Path

import pytest
from icedb_proto import ingest_pb2, ingest_pb2_grpc, snapshot_pb2, snapshot_pb2_grpc

PROTO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("icedb_proto_generate", PROTO / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_stubs_are_up_to_date(generate, tmp_path):
    fresh = {path.name: path.read_text() for path in generate.generate(tmp_path)}
    committed = {
        path.name: path.read_text()
        for path in (PROTO / "src" / "icedb_proto").glob("*_pb2*.py*")
        if path.suffix in (".py", ".pyi")
    }
    assert fresh.keys() == committed.keys()
    for name, text in fresh.items():
        assert committed[name] == text, f"{name} is stale: run `python proto/generate.py` and commit"


def test_names_on_the_wire_are_the_protocols_own():
    assert snapshot_pb2.DESCRIPTOR.name == "icedb/v1/snapshot.proto"
    service = snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"]
    assert service.full_name == "icedb.v1.SnapshotService"
    assert hasattr(snapshot_pb2_grpc, "SnapshotServiceStub")
    assert snapshot_pb2.GetSnapshotRequest.__module__ == "icedb_proto.snapshot_pb2"


def test_batches_may_be_streamed_both_ways():
    service = ingest_pb2.DESCRIPTOR.services_by_name["IngestService"]
    assert service.full_name == "icedb.v1.IngestService"
    assert hasattr(ingest_pb2_grpc, "IngestServiceStub")
    streams = {method.name: (method.client_streaming, method.server_streaming) for method in service.methods}
    assert streams == {"Append": (False, False), "AppendStream": (True, True)}
    assert not ingest_pb2.AppendRequest(table="t").HasField("batch_id")
    assert ingest_pb2.FORMAT_UNSPECIFIED == 0


def test_absent_is_not_zero():
    message = snapshot_pb2.GetSnapshotRequest(table="t")
    assert not message.HasField("as_of_ms")
    message.as_of_ms = 0
    assert snapshot_pb2.GetSnapshotRequest.FromString(message.SerializeToString()).HasField("as_of_ms")


def test_parts_of_an_answer_may_be_serialized_apart():
    files = snapshot_pb2.GetSnapshotResponse(files=[snapshot_pb2.DataFile(path="a")]).SerializeToString()
    more = snapshot_pb2.GetSnapshotResponse(files=[snapshot_pb2.DataFile(path="b")]).SerializeToString()
    head = snapshot_pb2.GetSnapshotResponse(table="t", file_count=2).SerializeToString()
    whole = snapshot_pb2.GetSnapshotResponse.FromString(head + files + more)
    assert [file.path for file in whole.files] == ["a", "b"]
    assert (whole.table, whole.file_count) == ("t", 2)
