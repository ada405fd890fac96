"""What a program sends comes once, whatever carries it: staged in the store, or over HTTP to a front end that runs here."""

import gzip
from collections import Counter
from http.client import RemoteDisconnected

import orjson
import pyarrow as pa
import pytest
import urllib3
from backports import zstd
from client_rig import CountingSender, HandClock
from frontend_fixtures import emptied, shared_frontend
from icedb_client import Client, ClientSettings, Undelivered, UnsentRows
from icedb_log.clock import new_batch_id, parse_uuid7_ms
from icedb_log.commit.table import Table
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, NotFound, Overloaded, TableHalted, Unavailable
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.pressure import FAILING, HALTED, Pressure, end_trouble, publish_pressure, publish_trouble
from icedb_log.ingest.quarantine import quarantine_batch
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.jobs import RejectedBatch
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_sim.rigs.frontend_rig import CLOCK
from icedb_sim.tables.row_files import RowFileWriter
from urllib3.exceptions import ProtocolError
from waiting import wait_until

SECOND_MS = 1000
LINES = b"".join(b'{"n":%d}\n' % n for n in range(5))


@pytest.fixture(scope="module")
def frontend(tmp_path_factory):
    with shared_frontend(tmp_path_factory.mktemp("transports")) as rig:
        rig.frontend._gate.acceptance.pressure._max_age_ms = 0  # it hears at once what a test says of a table
        yield rig


@pytest.fixture
def rig(frontend):
    with emptied(frontend) as rig:
        yield rig


@pytest.fixture
def place(rig):
    """The table, in which nothing is wrong."""
    place = rig.warehouse.table("events")
    yield place
    end_trouble(place)
    publish_pressure(place, Pressure(), clock=CLOCK)
    wait_until(lambda: rig.call("GET", "/v1/tables/events/batches").status == 200)


@pytest.fixture
def clock():
    """Time by hand; it stands a year ago, which no id may show."""
    return HandClock()


class Faults:
    """Does with each batch what the test says: "ok"; "down": it does not arrive; "lost": it does, and its answer not."""

    def __init__(self):
        self.script = []
        self.sent = 0

    def __call__(self, send, *, refuse, lose):
        self.sent += 1
        what = self.script.pop(0) if self.script else "ok"
        if what == "down":
            raise refuse
        answer = send()
        if what == "lost":
            raise lose
        return answer


@pytest.fixture(params=["staging", "http"])
def client(request, rig, clock, monkeypatch):
    """A client of either kind, with ``faults``."""
    faults = Faults()
    if request.param == "staging":
        settings = ClientSettings(store="file:///unused")
        # Staging itself tries three times when it does not know.
        monkeypatch.setattr("icedb_log.ingest.staging.MAX_STAGE_ATTEMPTS", 1)
    else:
        settings = ClientSettings(address=f"http://127.0.0.1:{rig.frontend.port}/", store=None)
        request_it = urllib3.HTTPConnectionPool.request

        def request_or_fail(pool, method, url, **fields):
            def send():
                return request_it(pool, method, url, **fields)

            if method == "GET":
                return send()
            lost = ProtocolError("Connection aborted.", RemoteDisconnected("closed"))
            return faults(send, refuse=lost, lose=lost)

        monkeypatch.setattr(urllib3.HTTPConnectionPool, "request", request_or_fail)
    with Client(settings=settings, clock=clock, warehouse=rig.warehouse) as client:
        client._sender = CountingSender()
        if request.param == "staging":
            put = rig.store.put_if_absent

            def put_or_fail(key, body):
                if "/staging/" not in key:
                    return put(key, body)
                down, lost = Unavailable("the store is down"), CommitOutcomeUnknown("lost, written")
                return faults(lambda: put(key, body), refuse=down, lose=lost)

            monkeypatch.setattr(rig.store, "put_if_absent", put_or_fail)
        client.faults = faults
        yield client


@pytest.fixture
def faults(client):
    return client.faults


def staged_rows(rig):
    rows = Counter()
    for name, body in rig.staged().items():
        text = zstd.decompress(body) if name.endswith(".zst") else body
        rows.update(orjson.loads(line)["n"] for line in text.splitlines())
    return rows


def flush(place):
    return flush_table(Table.open(place, clock=CLOCK, owner="test"), RowFileWriter(place.store, CLOCK))


@pytest.mark.parametrize(
    ("rows", "data_format", "staged_as"),
    [
        ([{"n": 1}, {"n": 2}], None, "ndjson"),
        ([{"n": n, "text": "x" * 80} for n in range(100)], None, "ndjson.zst"),
        (gzip.compress(LINES), None, "ndjson.gz"),
        (b'[{"n":1}]', None, "json"),
        (b"n\n1\n", "csv", "csv"),
        (pa.table({"n": [1, 2]}), None, "arrow"),
    ],
    ids=["rows", "many rows", "gzip", "json", "csv", "arrow"],
)
def test_every_form_of_rows_is_staged_under_its_id(client, rig, rows, data_format, staged_as):
    batch_id = new_batch_id(CLOCK)
    for _ in range(2):  # a retry is the same batch
        batch = client.enqueue("events", rows, batch_id=batch_id, data_format=data_format)
        assert (batch.batch_id, batch.is_woken, batch.is_repeated, batch.warning) == (batch_id, True, False, "")
    ((name, body),) = rig.staged().items()
    assert name == f"{batch_id}.{staged_as}"
    assert batch.staged_bytes == len(body)


def test_an_id_belongs_to_one_content(client, rig):
    batch_id = client.enqueue("events", [{"n": 1}]).batch_id
    with pytest.raises(InvalidRequest, match=r"other content|another batch"):
        client.enqueue("events", [{"n": 2}], batch_id=batch_id)
    with pytest.raises(InvalidRequest, match="order-7"):  # over HTTP, too, where any key may be sent
        client.enqueue("events", [{"n": 2}], batch_id="order-7")
    assert staged_rows(rig) == Counter([1])


def test_rows_come_once_though_answers_are_lost(client, rig, faults):
    faults.script = ["lost", "ok", "down", "down", "lost", "down", "lost", "ok", "lost"]
    with client.producer("events", max_rows=5, senders=1) as producer:
        producer.send_rows({"n": n} for n in range(50))
    assert staged_rows(rig) == Counter(range(50))
    assert len(rig.staged()) == 10
    assert producer.counters.retries >= 5


def test_an_id_has_the_time_of_the_store_on_a_host_whose_clock_is_wrong(client, rig):
    batch_id = client.enqueue("events", [{"n": 1}]).batch_id
    assert abs(parse_uuid7_ms(batch_id) - CLOCK.now_ms()) < 60 * SECOND_MS


def test_a_batch_whose_answer_never_comes_keeps_its_id(client, rig, faults, clock):
    faults.script = ["lost", *["down"] * 1000]
    began_ms = clock.ms
    producer = client.producer("events", retry_ms=60 * SECOND_MS)
    producer.send({"n": 1})
    with pytest.raises(UnsentRows, match="1 rows in 1 batches") as caught:
        producer.close()
    assert 60 * SECOND_MS <= clock.ms - began_ms < 70 * SECOND_MS
    (batch,) = caught.value.batches
    assert isinstance(batch.error, Undelivered)
    faults.script = []
    client.enqueue("events", batch.body, batch_id=batch.batch_id)
    assert staged_rows(rig) == Counter([1])


def test_retries_end_with_the_window_of_the_table(client, rig, faults, clock):
    if not rig.warehouse.has_table("hasty"):
        config = TableConfig.create(name="hasty", log_grace_ms=60 * SECOND_MS, data_grace_ms=60 * SECOND_MS)
        create_table(rig.warehouse.table("hasty"), config)
    faults.script = ["down"] * 1000
    began_ms = clock.ms
    producer = client.producer("hasty", retry_ms=3600 * SECOND_MS)
    producer.send({"n": 1})
    with pytest.raises(UnsentRows):
        producer.close()
    assert clock.ms - began_ms < 45 * SECOND_MS


def test_a_file_goes_on_after_a_lost_answer(client, rig, faults, tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_bytes(LINES)
    faults.script = ["ok", "lost", *["down"] * 1000]
    with pytest.raises(Undelivered) as caught:
        list(client.enqueue_file("events", path, batch_rows=2))
    faults.script = []
    rest = client.enqueue_file("events", path, batch_rows=2, first_row=3, batch_id=caught.value.batch_id)
    assert [batch.last_row for batch in rest] == [4, 5]
    assert staged_rows(rig) == Counter(range(5))


def test_the_same_file_is_taken_once_whatever_carries_it(client, rig, faults, tmp_path, request):
    path = tmp_path / "a.ndjson"
    path.write_bytes(LINES + b'{"n":"%s"}\n' % request.node.name.encode())
    faults.script = ["ok", "lost"]
    first = list(client.enqueue_file("events", path, once=True, batch_rows=2))
    # A front end notes after its answer that a key's batch is staged; until then it stages the same batch once more.
    wait_until(lambda: all(batch.is_repeated for batch in client.enqueue_file("events", path, once=True, batch_rows=2)))
    with Client(store="file:///unused", warehouse=rig.warehouse) as other:
        other._sender = CountingSender()
        there = list(other.enqueue_file("events", path, once=True, batch_rows=2))
    assert (
        {each.batch_id for each in there}
        == {each.batch_id for each in first}
        == {name.partition(".")[0] for name in rig.staged()}
    )
    assert all(batch.is_repeated for batch in there)
    with pytest.raises(InvalidRequest, match="used before with other content"):
        list(client.enqueue_file("events", path, once=True, batch_rows=3))


def test_a_table_that_is_not_there_is_told_before_a_row_is_sent(client, tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_bytes(LINES)
    for send in (
        lambda: client.producer("nope"),
        lambda: client.enqueue("nope", [{"n": 1}]),
        lambda: list(client.enqueue_file("nope", path)),
        lambda: client.wait_committed("nope", []),
    ):
        with pytest.raises(NotFound, match="nope"):
            send()
    with pytest.raises(InvalidRequest, match="is not allowed"):
        client.enqueue("No/Table", [{"n": 1}])


def test_back_pressure_is_waited_out_as_long_as_the_table_says(client, rig, place, clock, faults):
    publish_pressure(place, Pressure("stop", 60.0, "800 log files", 7000), clock=CLOCK)
    wait_until(lambda: rig.call("GET", "/v1/tables/events/batches").status == 429)
    with pytest.raises(Overloaded, match="800 log files") as caught:
        client.enqueue("events", [{"n": 0}])
    assert caught.value.retry_after_ms == 7000
    began_ms, waits = clock.ms, []

    def recover():
        waits.append(clock.ms - began_ms)
        if len(waits) == 3:
            publish_pressure(place, Pressure(), clock=CLOCK)
            wait_until(lambda: rig.call("GET", "/v1/tables/events/batches").status == 200)

    clock.on_sleep = recover
    with client.producer("events") as producer:
        producer.send({"n": 1})
    assert waits == [7000, 14_000, 21_000]
    assert (staged_rows(rig), faults.sent) == (Counter([1]), 1)
    publish_pressure(place, Pressure("stop", 60.0, "800 log files", 7000), clock=CLOCK)
    wait_until(lambda: rig.call("GET", "/v1/tables/events/batches").status == 429)
    clock.ms += 60 * SECOND_MS  # whatever it knew
    clock.on_sleep = lambda: None
    producer = client.producer("events", retry_ms=10 * SECOND_MS)
    producer.send({"n": 2})
    with pytest.raises(UnsentRows):
        producer.close()
    (unsent,) = producer.unsent
    assert type(unsent.error) is Overloaded  # not Undelivered: nothing was accepted


def test_a_halted_table_is_told_once_and_a_failing_one_warns(client, rig, place, clock, caplog):
    publish_trouble(place, FAILING, "the disk is full", clock=CLOCK)
    wait_until(lambda: "warning" in rig.call("GET", "/v1/tables/events/batches").json)
    clock.ms += 60 * SECOND_MS
    batches = [client.enqueue("events", [{"n": n}]) for n in range(2)]
    assert all("the disk is full" in batch.warning for batch in batches)
    assert caplog.text.count("the disk is full") == 1
    report = client.wait_committed("events", [batch.batch_id for batch in batches], timeout_ms=100)
    assert (len(report.waiting), report.failing, report.halted) == (2, "the disk is full", "")
    end_trouble(place)
    publish_trouble(place, HALTED, "two schemas", clock=CLOCK)
    wait_until(lambda: rig.call("GET", "/v1/tables/events/batches").status == 409)
    clock.ms += 60 * SECOND_MS
    with client.producer("events") as producer:
        producer.send({"n": 3})
        with pytest.raises(UnsentRows, match="two schemas"):
            producer.flush()
        (batch,) = producer.take_unsent()
    assert (type(batch.error), producer.counters.retries) == (TableHalted, 0)
    began_ms = clock.ms
    for timeout_ms in (0, 60 * SECOND_MS):
        report = client.wait_committed("events", [each.batch_id for each in batches], timeout_ms=timeout_ms)
        assert (len(report.waiting), report.halted) == (2, "two schemas")
    assert clock.ms == began_ms  # who waits for a halted table waits in vain


def test_what_became_of_batches_is_told_apart(client, rig, clock):
    if not rig.warehouse.has_table("orders"):
        partition = (PartitionField.parse("d=day(ts)"),)
        create_table(rig.warehouse.table("orders"), TableConfig.create(name="orders", partition=partition))
    place = rig.warehouse.table("orders")
    good = client.enqueue("orders", [{"ts": "2026-01-02", "n": 1}]).batch_id
    mixed = client.enqueue("orders", b'{"ts":"2026-01-02"}\nno JSON\n').batch_id
    broken = client.enqueue("orders", [{"ts": "2026-01-02", "n": "broken"}]).batch_id
    (batch,) = (each for each in list_staged(place).batches if each.batch_id == broken)
    quarantine_batch(place, rejected=RejectedBatch(batch, "no rows"), clock=CLOCK)
    flush(place)
    stage_batch(place, body=b'{"ts":"2026-01-03"}', staging_format="json", batch_id=good)
    flush(place)
    late = client.enqueue("orders", [{"ts": "2026-01-02"}]).batch_id
    never = new_batch_id(CLOCK)
    began_ms = clock.ms
    report = client.wait_committed("orders", [good, mixed, broken, late, never], timeout_ms=5 * SECOND_MS)
    assert clock.ms - began_ms >= 5 * SECOND_MS
    assert (report.committed, report.waiting, report.unknown) == ((good, mixed), (late,), (never,))
    assert [(entry.batch_id, entry.reason) for entry in report.quarantined] == [(broken, "no rows")]
    assert [(entry.batch_id, entry.row_count) for entry in report.bad_rows] == [(mixed, 1)]
    assert [entry.batch_id.partition(".")[0] for entry in report.conflicts] == [good]
    clock.on_sleep = lambda: flush(place)
    assert client.wait_committed("orders", [late]).committed == (late,)
