"""``icedb fsck``: one table that cannot be read hides none of the others."""

import json

from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.scripted_store import Fault
from icedb_sim.tables.small_table import SmallTable


def fail():
    raise ZeroDivisionError("nobody foresaw this")


def test_a_table_that_cannot_be_read_is_named_and_the_others_are_checked(lend, said_by_icedb):
    table = lend(SmallTable())
    for name in ("u", "w"):
        create_table(Warehouse(table.store, "wh").table(name), TableConfig.create(name=name))
    tables = json.loads(said_by_icedb("fsck", "-o", "json").out)["tables"]
    assert [(each["table"], each["sound"]) for each in tables] == [("t", True), ("u", True), ("w", True)]
    table.store.script = [Fault("", None, "wh/u/_log/", before=fail)]
    text = said_by_icedb("fsck", code=1).out
    assert [line.partition(" (")[0] for line in text.splitlines() if line[:2] in ("t:", "u:", "w:")] == [
        "t: sound", "u: not checked", "w: sound",
    ]  # fmt: skip
    table.store.script = [Fault("", None, "wh/u/_log/", before=fail)]
    _, said, _ = json.loads(said_by_icedb("fsck", "-o", "json", code=1).out)["tables"]
    (finding,) = said["findings"]
    assert (said["sound"], finding["code"], finding["severity"]) == (False, "not-checked", "error")
    assert "table u: its check: ZeroDivisionError: nobody foresaw this" in finding["message"]
