"""Conditions that would take for ever to be read, or that are no text: refused where people are told, kept by pruning."""

import subprocess
import sys

import pytest
from icedb_log.errors import InvalidRequest
from icedb_log.model import FileMarker
from icedb_log.table.conditions import check_condition
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.table_config import PartitionField, TableConfig

CONFIG = TableConfig.create(
    name="events", partition=(PartitionField.parse("u=bucket[4](name)"),), declared={"name": "VARCHAR", "n": "BIGINT"}
)
MARKER = FileMarker("wh/events/_data/u=1/a.parquet", 1, 1, row_count=1, stats={"n": (1, 5, 0)})
TOO_MUCH = {
    "guesses": "array[" * 40 + "1" + "]" * 40 + " IS NULL",
    "levels": "(" * 20_000 + "n = 9" + ")" * 20_000,
    "a long text": f"n = 9 OR name = '{'x' * 70_000}'",
    "half a character": "name = '\ud800'",
}


@pytest.mark.parametrize("condition", TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_condition_that_takes_too_long_to_read_keeps_every_file(condition):
    assert FilePruner(condition, CONFIG, schema=CONFIG.declared).may_be_true(MARKER)


@pytest.mark.parametrize("condition", TOO_MUCH.values(), ids=TOO_MUCH)
def test_it_is_refused_where_somebody_can_be_told(condition):
    with pytest.raises(InvalidRequest, match="table events: where="):
        check_condition(condition, CONFIG.declared, table="events")


def test_an_ordinary_condition_still_leaves_files_out():
    pruner = FilePruner("n = 9 OR (name = 'a' AND n > 7)", CONFIG, schema=CONFIG.declared)
    assert not pruner.may_be_true(MARKER)


def test_the_parsers_warnings_do_not_reach_standard_error():
    program = "import icedb_log.table.conditions, logging; logging.getLogger('sqlglot').warning('not ours')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert (ended.stdout, ended.stderr) == ("", "")
