"""Events of the tracking API: what becomes a row, and who may send it."""

import base64
import hashlib
import hmac

import orjson
import pytest
from icedb_ingest.frontend.errors import BatchTooLarge, NotAuthorized
from icedb_ingest.frontend.webhooks import CALLS, MAX_BATCH_EVENTS, Credentials, parse_payload, read_events
from icedb_log.errors import (
    InvalidRequest,
)

NOW = "2026-01-02T03:04:05.678Z"


def read(payload, call=""):
    body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    return read_events(parse_payload(body), call=call, received_at=NOW, max_bytes=1 << 20)


def rows(payload, call=""):
    events = read(payload, call)
    found = [orjson.loads(line) for line in events.lines.splitlines()]
    assert len(found) == events.count
    assert not events.reasons
    return found


def test_an_event_is_a_row_with_two_times_and_without_the_credential():
    event = {"type": "track", "event": "Paid", "userId": "7", "writeKey": "k", "properties": {"x": [1]}}
    (row,) = rows(event)
    assert row == {
        "type": "track",
        "event": "Paid",
        "userId": "7",
        "properties": {"x": [1]},
        "receivedAt": NOW,
        "timestamp": NOW,
    }
    (row,) = rows({**event, "timestamp": "2020-01-01T00:00:00Z", "receivedAt": "forged"})
    assert (row["timestamp"], row["receivedAt"]) == ("2020-01-01T00:00:00Z", NOW)


@pytest.mark.parametrize("call", CALLS)
def test_the_path_says_the_type(call):
    (row,) = rows({"anonymousId": "a"}, call)
    assert row["type"] == CALLS[call]
    assert rows({"type": "alias", "previousId": "p"}, call)[0]["type"] == "alias"


def test_a_batch_shares_context_and_time_of_sending():
    batch = {"batch": [{"type": "page", "userId": "1"}, {"type": "page", "userId": "2", "context": {"own": 1}}]}
    found = rows({**batch, "sentAt": "s", "context": {"app": 1}, "writeKey": "k"}, "batch")
    assert [row["context"] for row in found] == [{"app": 1}, {"own": 1}]
    assert [row["sentAt"] for row in found] == ["s", "s"]
    assert rows([{"type": "page", "userId": "1"}] * 2) == rows({"batch": [{"type": "page", "userId": "1"}] * 2})


@pytest.mark.parametrize(
    ("payload", "call", "words"),
    [
        ({"events": []}, "batch", "no list called batch"),
        ({"batch": {}}, "batch", "no list called batch"),
        ([], "", "no event"),
        ("text", "", "the body is not JSON"),
        (b"", "", "the body is not JSON"),
        (b'[{"type":"page"}', "", "the body is not JSON"),
        (b'{"type":"page"}]', "", "the body is not JSON"),
        (b'{"type":"pa', "", "the body is not JSON"),
        (b'{"a":1} {"a":1}', "", "the body is not JSON"),
        ([{}] * (MAX_BATCH_EVENTS + 1), "", f"at most {MAX_BATCH_EVENTS}"),
    ],
)
def test_what_has_no_events(payload, call, words):
    with pytest.raises(InvalidRequest, match=words):
        read(payload, call)


GOOD = b'{"type":"page","userId":"1","n":123456789012345678901234567890,"properties":{"x": [1.50, 1e-400]}}'


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (b'{"userId":"1"}', "has no type"),
        (b'{"type":5,"userId":"1"}', "has no type"),
        (b'{"type":"track","userId":""}', "has neither userId nor anonymousId"),
        (b"null", "is not a JSON object"),
        (b'"text"', "is not a JSON object"),
        (b'{"type":"page","userId":"1","userId":"2"}', "has a name twice"),
        (b'{"type":"page","userId":"1","\\u0075serId":"2"}', "has a name twice"),
        (b'{"type":"page","userId":"1","properties":{"half":"\\ud83d"}}', "cannot be read as JSON"),
        (b'{"type":"page","userId":"1","properties":{"half":"\\ude00 \\"}"}}', "cannot be read as JSON"),
        (b'{"type":"page","userId":"1","properties":{"n":01}}', "cannot be read as JSON"),
        (b'{"type":"page","userId":"1","properties":{"n":"a\nb"}}', "cannot be read as JSON"),
        (b'{"type":"page","userId":"1" "n":1}', "cannot be read as JSON"),
    ],
    ids=range(12),
)
@pytest.mark.parametrize("shape", [b"[%b, %b,\n%b]", b'{"batch":[%b,%b,%b],"context":{"n":1e21},"sentAt":"s"}'])
def test_a_bad_event_is_set_aside_and_good_ones_keep_every_digit(event, words, shape):
    events = read(shape % (GOOD, event, GOOD), "batch" if b"batch" in shape else "")
    assert (events.count, len(events.lines.splitlines())) == (2, 2)
    assert b'"n":123456789012345678901234567890,"properties":{"x":[1.50,1e-400]}' in events.lines
    assert (b'"context":{"n":1e21}' in events.lines) == (b"batch" in shape)
    (reason,) = events.reasons
    assert reason.startswith(f"event 2 {words}")
    (line,) = events.odd_lines.splitlines()
    assert line.startswith(b'["event 2 ')
    assert b"userId" in line or event in line


def test_a_name_that_is_escaped_or_replaced_is_one():
    (row,) = rows(b'{"type":"page","userId":"1","\\u0061":1,"receivedAt":"forged","writeKey":"k","timestamp":null}')
    assert row == {"type": "page", "userId": "1", "a": 1, "receivedAt": NOW, "timestamp": NOW}


def check(credentials, body=b"{}", *, key=None, signature="", authorization=""):
    credentials.check(body, key or "", signature=signature, authorization=authorization)


def test_what_a_batch_shares_is_not_repeated_beyond_the_bound():
    batch = {"context": {"page": "x" * 100_000}, "batch": [{"type": "track", "userId": "u"}] * 10_000}
    with pytest.raises(BatchTooLarge, match="the first 11 of 10000 events"):
        rows(batch)
    assert len(rows({**batch, "batch": batch["batch"][:10]})) == 10


def test_either_credential_will_do_and_none_is_asked_for_when_none_is_set():
    good = hmac.new(b"s", b"{}", hashlib.sha1).hexdigest()
    basic = "Basic " + base64.b64encode(b"k:").decode()
    check(Credentials())
    check(Credentials(secret=b"s"), signature=good.upper())
    check(Credentials(write_key=b"k"), authorization=basic)
    check(Credentials(secret=b"s", write_key=b"k"), key="k")
    for credentials, shown in [
        (Credentials(secret=b"s"), {}),
        (Credentials(secret=b"s"), {"key": "s"}),
        (Credentials(secret=b"s"), {"signature": good, "body": b"{} "}),
        (Credentials(secret=b"s"), {"signature": "ö"}),
        (Credentials(write_key=b"k"), {"signature": good}),
        (Credentials(write_key=b"k"), {"authorization": "Bearer k"}),
        (Credentials(write_key=b"k"), {"authorization": "Basic k"}),
    ]:
        with pytest.raises(NotAuthorized, match="this webhook wants") as caught:
            check(credentials, **shown)
        assert good not in str(caught.value)


@pytest.mark.parametrize("cut", [1, 2, 8, 39])
def test_a_part_of_a_credential_is_none(cut):
    good = hmac.new(b"s", b"{}", hashlib.sha1).hexdigest()
    for shown in (good[:cut], good[cut:], good + good[:cut], good[:-1] + "g", good[:cut] + "0" * (40 - cut)):
        with pytest.raises(NotAuthorized):
            check(Credentials(secret=b"s"), signature=shown)
    key = "k" * 39 + "y"
    basic = [base64.b64encode(f"{user}:{word}".encode()).decode() for user, word in ((key[:cut], ""), ("", key))]
    for shown in (
        *({"key": part} for part in (key[:cut], key[cut:], key + "k")),
        *({"authorization": f"Basic {token}"} for token in (*basic, "", "=")),
    ):
        with pytest.raises(NotAuthorized):
            check(Credentials(write_key=key.encode()), **shown)


def test_a_signature_is_of_the_whole_body():
    body = b"[" + b"1," * 10_000 + b"1]"
    signature = hmac.new(b"s", body, hashlib.sha1).hexdigest()
    check(Credentials(secret=b"s"), body, signature=signature)
    for place in (0, 1, 63, 64, 9_999, len(body) - 1):
        changed = body[:place] + b"2" + body[place + 1 :]
        for other in (changed, body[:place], body + b" "):
            with pytest.raises(NotAuthorized):
                check(Credentials(secret=b"s"), other, signature=signature)
