"""A file that is taken once, and a store that nobody waits for because waiting does not mend it."""

import errno
import io

import pytest
from botocore.exceptions import ClientError, NoCredentialsError
from icedb_log.errors import InvalidRequest, StoreRefused, Unavailable
from icedb_log.ingest.staging import list_staged
from icedb_log.store.local_store import explain
from icedb_log.store.s3_quirks import explain_conditional_write, explain_read

LINES = b"".join(b'{"n":%d}\n' % n for n in range(5))


@pytest.fixture
def send(client, tmp_path):
    def send(content=LINES, name="a.ndjson", **options):
        path = tmp_path / name
        path.write_bytes(content)
        return list(client.enqueue_file("events", path, once=True, **{"batch_rows": 2, **options}))

    return send


def staged_ids(warehouse):
    return [batch.batch_id for batch in list_staged(warehouse.table("events")).batches]


def test_a_file_is_taken_once_whatever_it_is_called(send, create, warehouse):
    create()
    first = send()
    again = send(name="b.ndjson")
    assert [batch.is_repeated for batch in first + again] == [False] * 3 + [True] * 3
    assert [batch.batch_id for batch in again] == [batch.batch_id for batch in first]
    staged = list_staged(warehouse.table("events")).batches
    assert len(staged) == 3
    warehouse.store.delete([batch.key for batch in staged])  # they are committed
    assert all(batch.is_repeated for batch in send())
    assert staged_ids(warehouse) == []
    assert not any(batch.is_repeated for batch in send(LINES + b'{"n":5}\n'))


def test_a_run_that_was_stopped_goes_on(send, create, warehouse, monkeypatch):
    create()
    put, count = warehouse.store.put_if_absent, [0]

    def stop_at_the_second_batch(key, body):
        if "/staging/" in key:
            count[0] += 1
            if count[0] == 2:
                raise KeyboardInterrupt
        return put(key, body)

    with monkeypatch.context() as patch:
        patch.setattr(warehouse.store, "put_if_absent", stop_at_the_second_batch)
        with pytest.raises(KeyboardInterrupt):
            send()
    assert [batch.is_repeated for batch in send()] == [True, False, False]
    assert len(staged_ids(warehouse)) == 3


def test_what_cannot_be_told_from_a_duplicate_is_refused(send, create, warehouse, clock, monkeypatch):
    config = create()
    send()
    with pytest.raises(InvalidRequest, match="used before with other content"):
        send(batch_rows=3)
    with monkeypatch.context() as patch:
        patch.setattr("icedb_client.staging.mark_staged", lambda *_: None)
        send(b'{"n":7}\n')
    clock.sleep_ms(config.retry_window_ms)
    with pytest.raises(InvalidRequest, match="nobody confirmed that it was accepted"):
        send(b'{"n":7}\n')


def test_a_stream_has_no_name(client, create):
    create()
    with pytest.raises(InvalidRequest, match="once is for files"):
        list(client.enqueue_file("events", io.BytesIO(LINES), once=True))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_nobody_waits_for_what_only_a_person_mends(client, create, warehouse, monkeypatch, tmp_path, number):
    create()
    refusal = explain(OSError(number, "no"), "/store/x", "write")
    assert type(refusal) is StoreRefused

    def refuse(*_args, **_options):
        raise refusal

    waits = []
    path = tmp_path / "a.ndjson"
    path.write_bytes(LINES)
    with monkeypatch.context() as patch:
        patch.setattr(warehouse.store, "put_if_absent", refuse)
        with pytest.raises(StoreRefused, match="/store/x: cannot write: no; "):
            list(client.enqueue_file("events", path, on_wait=waits.append))
        assert waits == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EINTR, errno.ESTALE])
def test_what_may_pass_is_tried_again(number):
    assert type(explain(OSError(number, "no"), "/store/x", "write")) is Unavailable


def s3_error(status, code):
    answer = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "PutObject")


@pytest.mark.parametrize("explain_error", [explain_read, explain_conditional_write])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (s3_error(403, "AccessDenied"), StoreRefused),
        (s3_error(403, "InvalidAccessKeyId"), StoreRefused),
        (s3_error(404, "NoSuchBucket"), StoreRefused),
        (s3_error(301, "PermanentRedirect"), StoreRefused),
        (s3_error(403, "RequestTimeTooSkewed"), StoreRefused),
        (s3_error(409, "OperationAborted"), Unavailable),
        (s3_error(429, "SlowDown"), Unavailable),
    ],
    ids=lambda value: getattr(value, "__name__", "") or value.response["Error"]["Code"],
)
def test_answers_of_a_bucket_that_stay_so_are_told_from_those_that_pass(explain_error, error, kind):
    assert type(explain_error(error, where="bucket b", key="k")) is kind


def test_without_credentials_nobody_waits():
    assert type(explain_read(NoCredentialsError(), where="bucket b", key="k")) is StoreRefused
