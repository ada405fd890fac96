"""gRPC messages of format 1, byte for byte: what an earlier client says is understood, and a later one is not garbled."""

import json
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from icedb_proto import ingest_pb2, snapshot_pb2

MESSAGES = json.loads((Path(__file__).with_name("golden") / "messages.json").read_text())


def test_every_message_of_the_services_has_golden_bytes():
    files = (ingest_pb2.DESCRIPTOR, snapshot_pb2.DESCRIPTOR)
    rpcs = [rpc for file in files for service in file.services_by_name.values() for rpc in service.methods]
    assert {each.full_name for rpc in rpcs for each in (rpc.input_type, rpc.output_type)} == {*MESSAGES}


@pytest.mark.parametrize("name", MESSAGES)
def test_golden_bytes_mean_what_they_meant_and_unknown_fields_are_kept(name):
    golden = MESSAGES[name]
    kind = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))
    message = kind.FromString(bytes.fromhex(golden["hex"]))
    assert json_format.MessageToDict(message, preserving_proto_field_name=True) == golden["fields"]
    later = message.SerializeToString() + b"\xf2\x7f\x03new"  # a field of a later release, number 2046
    assert kind.FromString(later).SerializeToString() == later
