"""Requests are checked, and every wrong one is refused with the remedy."""

import pytest
from icedb_log.errors import InvalidRequest
from icedb_proto import snapshot_pb2 as pb
from icedb_snapshot.requests import ServiceParts, parse_request
from icedb_snapshot.settings import SnapshotSettings
from pydantic import ValidationError

BATCH_ID = "018bcfe5-6800-7000-8000-000000000000"


def parse(**fields):
    return parse_request(pb.GetSnapshotRequest(**fields))


def age(**fields):
    parts = ServiceParts(None, SnapshotSettings(store="file:///tmp/x"), None, None, None, None, None)
    return parts.max_staleness_ms(pb.GetSnapshotRequest(table="t", **fields))


def test_absent_fields_take_defaults_and_zero_is_not_absent():
    query = parse(table="events")
    assert (query.as_of_ms, age(), query.filters) == (None, 1000, ())
    query = parse(table="events", as_of_ms=0)
    assert (query.as_of_ms, age(max_staleness_ms=0)) == (0, 0)


def test_every_condition_is_understood():
    filters = parse(
        table="events",
        partition_filters=[
            pb.PartitionFilter(field="a", equals=""),
            pb.PartitionFilter(field="b", any_of=pb.ValueList(values=["x", "y"])),
            pb.PartitionFilter(field="c", is_null=False),
            pb.PartitionFilter(field="d", range=pb.ValueRange(at_least="1", below="2")),
            pb.PartitionFilter(field="e", range=pb.ValueRange(above="1", at_most="2")),
            pb.PartitionFilter(field="f", glob="a*"),
        ],
    ).filters
    assert filters[0].any_of == {""}
    assert filters[1].any_of == {"x", "y"}
    assert filters[2].is_null is False
    assert (filters[3].at_least, filters[3].below, filters[3].above) == ("1", "2", None)
    assert (filters[4].above, filters[4].at_most, filters[4].at_least) == ("1", "2", None)
    assert (filters[5].glob, filters[5].any_of) == ("a*", None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"table": ""}, "a-z"),
        ({"table": "../etc"}, "a-z"),
        ({"table": "a\x00b"}, "a-z"),
        ({"table": "x" * 10_000}, "a-z"),
        ({"table": "t", "as_of_ms": -1}, "unix milliseconds"),
        ({"table": "t", "as_of_ms": 1 << 60}, "unix milliseconds"),
        ({"table": "t", "partition_filters": [pb.PartitionFilter(field="d")]}, "no condition"),
        ({"table": "t", "min_commit": "nope"}, "no batch id"),
        ({"table": "t", "min_commit": ""}, "no batch id"),
        ({"table": "t", "presign_ms": 0}, "use 1000 to 604800000"),
        ({"table": "t", "presign_ms": 1 << 40}, "use 1000 to 604800000"),
        ({"table": "t", "tag": "p", "as_of_ms": 5}, "leave as_of_ms and min_commit out"),
        ({"table": "t", "tag": "p", "min_commit": BATCH_ID}, "leave as_of_ms and min_commit out"),
    ],
)
def test_wrong_requests(fields, words):
    with pytest.raises(InvalidRequest, match=words) as caught:
        parse(**fields)
    assert len(str(caught.value)) < 400


def test_a_staleness_out_of_bounds():
    with pytest.raises(InvalidRequest, match=r"0 \(read now\)"):
        age(max_staleness_ms=-1)


@pytest.mark.parametrize("address", ["", "localhost", "127.0.0.1:99999", "http://a:1", "a b:1"])
def test_bad_addresses_are_refused(address):
    with pytest.raises(ValidationError, match="host:port"):
        SnapshotSettings(store="file:///tmp/x", snapshot_address=address)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "0.0.0.0:50051", "[::1]:50051", "snapshot.icedb.svc:50051"])
def test_good_addresses(address):
    assert SnapshotSettings(store="file:///tmp/x", snapshot_address=address).snapshot_address == address


def test_watchers_leave_room_for_calls():
    SnapshotSettings(store="file:///tmp/x", snapshot_max_watchers=9, snapshot_max_pending_calls=10)
    with pytest.raises(ValidationError, match="watchers would leave no room for calls"):
        SnapshotSettings(store="file:///tmp/x", snapshot_max_watchers=10, snapshot_max_pending_calls=10)
