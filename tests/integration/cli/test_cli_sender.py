"""``icedb ingest`` for people who have an address and a token, and no key of the bucket."""

import threading

import pytest
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.pressure import Pressure, publish_pressure
from icedb_sim.rigs.access_rig import token_entry, write_access
from icedb_sim.rigs.frontend_rig import CLOCK, start_rig
from icedb_sim.tables.row_files import RowFileWriter
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("quiet_services")
TOKEN = "icedbt_writer-0123456789abcdef"
LINES = b"".join(b'{"n":%d}\n' % n for n in range(5))


@pytest.fixture(scope="module")
def rig(tmp_path_factory, quiet_services):
    folder = tmp_path_factory.mktemp("sender")
    document = {
        "identities": {"writer": {"tokens": [token_entry(TOKEN)]}},
        "grants": [{"identities": ["writer"], "tables": ["events"], "verbs": ["append"]}],
    }
    rig = start_rig(folder / "store", access_file=str(write_access(folder / "access.json", document)))
    yield rig
    rig.frontend.stop()


@pytest.fixture
def address(rig):
    rig.clear()
    return f"http://127.0.0.1:{rig.frontend.port}"


@pytest.fixture
def send(icedb, address):
    """Ingest without any store, as the environment says where."""

    def send(*arguments, **more):
        settings = {"ICEDB_STORE": None, "ICEDB_ADDRESS": address, "ICEDB_TOKEN": TOKEN}
        return icedb("ingest", "events", *arguments, **settings | more)

    return send


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_bytes(LINES)
    return str(path)


def flush_when_staged(rig, count):
    def flush():
        wait_until(lambda: len(rig.staged()) == count)
        flush_table(
            Table.open(rig.warehouse.table("events"), clock=CLOCK, owner="test"), RowFileWriter(rig.store, CLOCK)
        )

    thread = threading.Thread(target=flush)
    thread.start()
    return thread


def test_a_file_is_sent_and_its_commit_waited_for(rig, send, file):
    thread = flush_when_staged(rig, 3)
    done = send(file, "--batch-rows", "2", "--wait", "-o", "json").json
    thread.join()
    assert (done["rows"], done["batches"], done["committed"], done["waiting"]) == (5, 3, 3, [])
    said = send("-", stdin=b'{"n":7}\n')
    assert "1 row accepted in 1 batch" in said.out
    assert "--commit" not in said.err  # nothing of the store is offered to who does not have it
    assert "no worker" not in said.err


def test_the_same_file_is_sent_once(rig, send, tmp_path):
    path = tmp_path / "once.ndjson"
    path.write_bytes(b'{"once":1}\n{"once":2}\n')
    first = send(str(path), "--once", "--batch-rows", "1", "-o", "json").json
    assert (first["batches"], first["repeated"]) == (2, 0)
    # The front end notes after its answer that a key's batch is staged.
    wait_until(lambda: send(str(path), "--once", "--batch-rows", "1", "-o", "json").json["repeated"] == 2)
    again = send(str(path), "--once", "--batch-rows", "1", "-o", "json").json
    assert (again["batches"], again["batch_ids"]) == (0, first["batch_ids"])
    assert len(rig.staged()) == 2
    assert "2 batches with the same bytes accepted before" in send(str(path), "--once", "--batch-rows", "1").err


def test_what_is_wrong_is_one_error_and_an_exit_code(send, icedb, file, address, url):
    wrong = send(file, ICEDB_TOKEN="wrong", code=7).error
    assert "ICEDB_TOKEN" in wrong
    assert "wrong" not in wrong.replace("wrong ones", "")
    assert "does not exist" in icedb("ingest", "nope", file, "--address", address, code=3, ICEDB_TOKEN=TOKEN).error
    assert "does not answer" in send(file, "--address", "http://127.0.0.1:1", "--retry", "0s", code=4).error
    assert "is not an address; write https://host:port" in send(file, "--address", "127.0.0.1:8088", code=2).error
    assert "--wait instead of --commit" in send(file, "--commit", code=2).error
    assert "does not exist" in send(file, "--store", url, code=3).error  # a store that is named is meant


def test_a_table_without_room_makes_it_wait_and_says_so(rig, send, file, address):
    place = rig.warehouse.table("events")
    publish_pressure(place, Pressure("stop", 60.0, "800 log files", 1000), clock=CLOCK)
    call = "/v1/tables/events/batches"
    try:
        wait_until(lambda: rig.call("GET", call, Authorization=f"Bearer {TOKEN}").status == 429)
        answer = send(file, "--retry", "0s", code=4)
        assert "800 log files" in answer.error
        assert rig.staged() == {}
    finally:
        publish_pressure(place, Pressure(), clock=CLOCK)
    wait_until(lambda: rig.call("GET", call, Authorization=f"Bearer {TOKEN}").status == 200)


def test_an_interrupted_file_says_how_to_go_on(rig, send, tmp_path):
    path = tmp_path / "bad.ndjson"
    path.write_bytes(b'{"bad":1}\n{"bad":2}\nno JSON\n')
    answer = send(str(path), "--batch-rows", "2", code=2)
    assert "2 rows before it accepted in 1 batch: correct it and go on with --from-row 3" in answer.error
    once = send(str(path), "--batch-rows", "2", "--once", code=2)
    assert "The same command again goes on" in once.error
    path.write_bytes(b'{"bad":1}\n{"bad":2}\n{"bad":3}\n')
    rest = send(str(path), "--batch-rows", "2", "--from-row", "3", "-o", "json").json
    assert rest["rows"] == 1
