"""A store that others wrote: Ceph's S3 gateway, whose listings have a hundred objects a page.

Ceph 16.2 differs from S3 in two points. A replace that meets another one for its key may be answered 500 though nothing
was written: its outcome is unknown (W2), and is read. And a replace may land although its object was deleted meanwhile.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from ceph_gateway import BUCKET, MISSING, running_ceph
from icedb import connect
from icedb_log.errors import CommitOutcomeUnknown, PreconditionFailed
from icedb_log.store.s3 import S3ObjectStore
from icedb_sim.fakes.store_acceptance import race
from s3_acceptance import S3Acceptance

pytestmark = [
    pytest.mark.s3,
    pytest.mark.soak,
    pytest.mark.skipif(bool(MISSING), reason="no Ceph here: apt-get install radosgw ceph-mon ceph-osd"),
]


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    with running_ceph(tmp_path_factory.mktemp("ceph")) as options:
        yield options


@pytest.fixture(scope="module")
def handles(options):
    return S3ObjectStore(BUCKET, options), S3ObjectStore(BUCKET, options)


class TestCephObjectStore(S3Acceptance):
    lost_races = (PreconditionFailed, CommitOutcomeUnknown)
    page_size = 100

    def test_a_replace_never_lands_on_a_newer_object(self, store):
        """It lands on none at all: whoever creates the object anew is refused then."""

        def delete_and_create(key):
            store.delete([key])
            return store.put_if_absent(key, b"new")

        for number in range(self.race_count * 2):
            key = f"race/newer/{number}"
            etag = store.put_if_absent(key, b"old")
            created, _ = race([partial(delete_and_create, key), partial(store.put_if_match, key, b"mine", etag=etag)])
            assert store.get(key).body == (b"new" if isinstance(created, str) else b"mine")


def test_a_lake_lives_on_it(options, monkeypatch):
    """Writers that race for one table, merges and a vacuum; then more objects than a page of a listing has."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options.secret_access_key)

    monkeypatch.setenv("ICEDB_S3_ENDPOINT", options.endpoint_url)

    def open_lake():
        return connect(f"s3://{BUCKET}/lake")

    def write(writer):
        with open_lake() as lake:
            for number in range(20):
                lake.table("events").append([{"writer": writer, "n": number, "d": f"2026-01-{number + 1:02d}"}])

    with open_lake() as lake:
        lake.create_table("events", partition=["d=d"], sort=["writer", "n"])
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        table = lake.table("events")
        expected = sorted((writer, number) for writer in range(4) for number in range(20))
        assert sorted(lake.query("select writer, n from events").fetchall()) == expected
        table.merge(full=True)
        table.vacuum()
        assert sorted(lake.query("select writer, n from events").fetchall()) == expected
        table.append([{"writer": n, "n": n, "d": f"2027-{n // 28 + 1:02d}-{n % 28 + 1:02d}"} for n in range(250)])
        assert lake.query("select count(*) from events").fetchall() == [(330,)]
