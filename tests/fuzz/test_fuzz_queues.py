"""Entries of a worker's queue: kombu and the worker's guard can take one to its end, or it is dropped; nothing ends a worker."""

import base64
import json

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from icedb_service.message_guard import find_entry_problem, find_problem
from icedb_sim.tables.profiles import fuzz_examples
from kombu import Connection
from kombu.transport.virtual import Message
from kombu.utils.json import dumps, loads

TASK = "icedb.janitor.vacuum"
GOOD = {
    "body": base64.b64encode(b'[["events"], {}, {"callbacks": null, "chain": null}]').decode(),
    "content-type": "application/json",
    "content-encoding": "utf-8",
    "headers": {"task": TASK, "id": "0b7c", "lang": "py", "retries": 0, "timelimit": [None, None], "expires": None},
    "properties": {
        "correlation_id": "0b7c",
        "delivery_info": {"exchange": "", "routing_key": "janitor"},
        "delivery_mode": 2,
        "delivery_tag": "5d1e",
        "body_encoding": "base64",
        "priority": 0,
    },
}
PLACES = [
    ("body",), ("content-type",), ("content-encoding",), ("headers",), ("properties",), ("nonsense",),
    *(("headers", name) for name in (*GOOD["headers"], "compression", "eta", "group", "chord", "stamps", "argsrepr", "root_id", "authorization")),
    *(("properties", name) for name in GOOD["properties"]),
    ("properties", "delivery_info", "exchange"), ("properties", "delivery_info", "routing_key"),
]  # fmt: skip
SCALARS = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 2**70, 0.5, float("nan"), float("inf"), "", "\ud800", "\x00", "é", "a\nb", "x" * 200, "=", "a", "base64", "utf-8", "nope", "hex", "zlib", "application/x-gzip", "application/x-python-serialize", TASK]),
    st.text(max_size=6),
)  # fmt: skip
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=2),
    st.dictionaries(
        st.text(max_size=3) | st.sampled_from(["__type__", "__value__", "compression"]), SCALARS, max_size=2
    ),
    st.builds(
        lambda name, value: {"__type__": name, "__value__": value},
        st.sampled_from(["uuid", "datetime", "date", "time", "decimal", "bytes", "base64", "promise", "nope"]),
        st.one_of(SCALARS, st.just({"hex": "0" * 32}), st.just("2026-11-22T00:00:00"), st.just({"id": 1})),
    ),
    st.integers(1, 3000).map(lambda levels: json.loads("[" * min(levels, 900) + "]" * min(levels, 900))),
    st.binary(max_size=30).map(lambda raw: base64.b64encode(raw).decode()),
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2), max_leaves=4).map(
        lambda value: base64.b64encode(json.dumps(value).encode()).decode()
    ),
)
MISSING = "\x00missing"


def change(edits):
    """Return the bytes of an envelope with other values at some places."""
    envelope = json.loads(json.dumps(GOOD))
    for place, value in edits:
        holder = envelope
        for name in place[:-1]:
            holder = holder.get(name) if isinstance(holder, dict) else None
        if not isinstance(holder, dict):
            continue
        if value == MISSING:
            holder.pop(place[-1], None)
        else:
            holder[place[-1]] = value
    return json.dumps(envelope).encode()


def cut(raw, edits):
    for at, inserted, removed in edits:
        place = at % (len(raw) + 1)
        raw = raw[:place] + inserted + raw[place + removed :]
    return raw


ENTRIES = st.one_of(
    st.lists(st.tuples(st.sampled_from(PLACES), VALUES | st.just(MISSING)), max_size=3).map(change),
    st.builds(cut, st.just(change([])), st.lists(st.tuples(st.integers(0, 1000), st.binary(max_size=3), st.integers(0, 9)), max_size=3)),
    st.binary(max_size=40),
    st.builds(lambda value: json.dumps(value).encode(), VALUES),
    st.sampled_from([b"[" * 200_000, b'{"a":' * 100_000, b"9" * 10_000, b'"', b"\xef\xbb\xbf{}"]),
)  # fmt: skip


@pytest.fixture(scope="module")
def channel():
    with Connection("memory://") as connection:
        yield connection.channel()


@fuzz_examples(200)
@given(entry=ENTRIES)
@example(entry=change([]))
@example(entry=b"garbage")
@example(entry=change([(("headers", "a"), json.loads("[" * 900 + "]" * 900))]))
def test_what_is_not_dropped_can_be_received_noted_and_delivered_again(channel, entry):
    if find_entry_problem(entry) is not None:
        event("dropped")
        return
    # What kombu does with it, in this order: all of it runs outside of whatever a worker guards.
    envelope = loads(entry)
    message = Message(envelope, channel=channel)
    place = message.delivery_info
    noted = dumps([message._raw, place["exchange"], place["routing_key"]]).encode()
    assert {message.delivery_tag: noted}
    message.delivery_tag.encode()
    again = loads(noted)[0]
    assert json.dumps(again) == json.dumps(envelope)
    assert find_entry_problem(dumps(again).encode()) is None, "what is delivered again is taken again"
    message.accept = {"application/json"}
    if message.errors:
        event("refused: compressed")
        return
    problem = find_problem(message, known={TASK})
    event("taken" if problem is None else "refused")
    assert problem is None or len(problem) < 500


def test_a_message_as_celery_writes_it_is_taken(channel):
    assert find_entry_problem(change([])) is None
    message = Message(loads(change([])), channel=channel)
    message.accept = {"application/json"}
    assert find_problem(message, known={TASK}) is None
