"""A warehouse, an access file, and servers without TLS."""

import pytest
import structlog
from access_servers import ALL, READER, SECRET_TABLE, SLOW, STRANGER, TABLE, WRITER, CountingStore, Servers
from icedb_log.warehouse import Warehouse
from icedb_sim.rigs.access_rig import TokenIssuer, token_entry, write_access
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def issuer():
    return TokenIssuer()


@pytest.fixture(scope="module")
def access_file(folder, issuer):
    read, everything = ["read"], ["read", "append", "maintain", "erase"]
    return write_access(
        folder / "access.json",
        {
            "identities": {
                "all": {"tokens": [token_entry(ALL)], "certificates": ["all.internal"]},
                "reader": {"tokens": [token_entry(READER)], "certificates": ["reader"]},
                "writer": {"tokens": [token_entry(WRITER)]},
                "stranger": {"tokens": [token_entry(STRANGER)]},
                "slow": {"tokens": [token_entry(SLOW)], "rate": {"calls_per_s": 0.001, "burst": 1}},
                "segment": {},
            },
            "issuers": {"login": issuer.write(folder)},
            "grants": [
                {"identities": ["all", "login:boss", "slow"], "tables": [TABLE], "verbs": everything},
                {"identities": ["reader"], "tables": [TABLE], "verbs": read},
                {"identities": ["writer", "segment"], "tables": [TABLE], "verbs": ["append"]},
                {"identities": ["stranger"], "tables": ["other*"], "verbs": everything},
            ],
        },
    )


@pytest.fixture(scope="module")
def logs():
    """Every event of all servers here."""
    with structlog.testing.capture_logs() as found:
        yield found


@pytest.fixture(scope="module")
def store(folder):
    (folder / "warehouse").mkdir()
    store = CountingStore(folder / "warehouse")
    parquet = ParquetWarehouse(Warehouse(store))
    for table in (TABLE, SECRET_TABLE):
        parquet.create(table, "d=day(ts)")
        parquet.commit(table, "select timestamp '2026-01-02' as ts, 'x' as event", partition="d=2026-01-02")
    return store


@pytest.fixture(scope="module")
def plain(store, folder, access_file, logs):
    servers = Servers(store, folder, "plain", access_file=str(access_file), frontend_segment_write_key="wk")
    yield servers
    servers.stop()
