"""What older clients and workers say is still understood: gRPC messages, Celery tasks; and nothing of it ever changes."""

import copy
import importlib.util
import json
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool, json_format, message_factory

GOLDEN = Path(__file__).with_name("golden")
MESSAGES = json.loads((GOLDEN / "messages.json").read_text())


@pytest.fixture(scope="module")
def wire():
    spec = importlib.util.spec_from_file_location("icedb_released_wire", Path(__file__).with_name("released_wire.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def stored(wire):
    return json.loads(wire.STORED.read_text())


@pytest.fixture(scope="module")
def now(wire):
    return wire.read_wire()


def test_nothing_that_a_release_had_is_changed_or_gone(wire, stored, now):
    assert wire.find_breaks(stored, now) == []


@pytest.mark.parametrize(
    ("name", "fact", "said"),
    [
        ("field icedb.v1.AppendRequest.table", None, "icedb.v1.AppendRequest.table is gone"),
        (
            "field icedb.v1.GetSnapshotRequest.as_of_ms",
            "number 99, type 3, presence",
            "is «number 99, type 3, presence»",
        ),
        ("rpc icedb.v1.IngestService.AppendStream", "takes icedb.v1.AppendRequest, gives nothing", "is «takes "),
        ("argument icedb.merge.merge.full", "place 1, <class 'int'>, may be left out", "is «place 1, <class 'int'>"),
        ("argument icedb.merge.merge.lane", "place 2, <class 'str'>, needed", "is new and needed"),
        ("task icedb.janitor.vacuum", None, "task icedb.janitor.vacuum is gone"),
    ],
)
def test_a_change_is_told(wire, stored, now, name, fact, said):
    changed = copy.copy(now)
    changed.pop(name, None)
    if fact is not None:
        changed[name] = fact
    (problem,) = wire.find_breaks(stored, changed)
    assert said in problem


def test_what_is_added_or_needed_no_more_is_no_change(wire, stored, now):
    added = {
        "field icedb.v1.AppendRequest.zone": "number 90, type 9, presence",
        "argument icedb.merge.merge.lane": "place 2, <class 'str'>, may be left out",
        "argument icedb.merge.new.table": "place 0, <class 'str'>, needed",
        "argument icedb.merge.merge.table": "place 0, <class 'str'>, may be left out",
    }
    assert wire.find_breaks(stored, {**now, **added}) == []


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_an_older_release_means_what_it_meant(wire, name):
    golden = MESSAGES[name]
    kind = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(golden["type"]))
    message = kind.FromString(bytes.fromhex(golden["hex"]))
    assert json_format.MessageToDict(message, preserving_proto_field_name=True) == golden["fields"]
    later = message.SerializeToString() + b"\xf2\x7f\x03new"  # a field of a later release, number 2046
    assert kind.FromString(later).SerializeToString() == later
