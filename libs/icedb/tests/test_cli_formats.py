"""Options that every command takes: where they may stand, and what each word of ``-o`` prints."""

import csv
import io
import json
from datetime import datetime

import pytest
from icedb.cli.app import load_all
from icedb.cli.output import dump_records


def commands(group, path=()):
    """Yield every command with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(load_all()))


def test_the_options_of_the_root_may_stand_before_and_behind_a_command(run_icedb, tmp_path, cli_env):
    one, two = f"{tmp_path}/one", f"{tmp_path}/two"
    run_icedb("--store", one, "table", "create", "events")
    assert run_icedb("table", "list", "--store", one, "-o", "ndjson") == run_icedb(
        "-o", "ndjson", "--store", one, "table", "list"
    )
    assert json.loads(run_icedb("--store", two, "table", "list", "--store", one, "-o", "json"))["tables"], (
        "the last counts"
    )
    assert "shows in `ps`" in run_icedb("status", "--store", one, "--redis-url", "redis://:secret@h/0", code=2)


def test_records_are_lines_of_csv_and_ndjson(run_icedb, folder):
    run_icedb("table", "create", "events", "--partition", "d=day(ts)", "--column", "price:DOUBLE")
    run_icedb("table", "create", "clicks")
    (clicks, events) = map(json.loads, run_icedb("table", "list", "-o", "ndjson").splitlines())
    assert (clicks["table"], events["table"], events["declared"]) == (
        "clicks",
        "events",
        {"price": "DOUBLE", "ts": "TIMESTAMP"},
    )
    (first, second) = csv.DictReader(io.StringIO(run_icedb("table", "list", "-o", "csv")))
    assert (first["table"], second["partition"], second["view_of"]) == ("clicks", '["d=day(ts)"]', "")
    assert json.loads(second["declared"]) == events["declared"]
    assert (
        dump_records([{"at": datetime(2026, 1, 2), "ok": True, "n": None}], "csv")
        == "at,ok,n\n2026-01-02 00:00:00,true,\n"
    )
    assert run_icedb("tag", "list", "events", "-o", "csv") == run_icedb("tag", "list", "events", "-o", "ndjson") == ""


def test_a_format_that_a_command_does_not_have_is_one_clear_error(run_icedb, folder):
    assert "`icedb table show` prints no parquet: give -o table or json" in run_icedb(
        "table", "show", "events", "-o", "parquet", code=2
    )
    assert "`icedb doctor` prints no csv" in run_icedb("doctor", "-o", "csv", code=2)
    assert "status --watch prints no csv" in run_icedb("status", "--watch", "-o", "csv", code=2)


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[-1] == "list"], ids=" ".join)
def test_whatever_lists_gives_records(words):
    assert {"csv", "ndjson", "json"} <= set(COMMANDS[words].gives)


MEANINGS = {
    "--all": "instead of",
    "--dry-run": ("writes nothing", "nothing is written"),
    "--force": ("Also", "also", "although"),
    "--yes": "not ask",
    "--wait": ("only hand the task over", "until workers have committed"),
    "--from": "feed this one",
    "--since": "a duration",
    "--timeout": "long",
    "--local": "Do it in this process",
    "--as-of": ("Time travel", "past time"),
}


def test_an_option_means_the_same_wherever_it_stands():
    found = {
        (name, " ".join(words)): each.help
        for words, command in COMMANDS.items()
        for each in command.params
        for name in MEANINGS
        if name in each.opts
    }
    assert {name for name, _ in found} == MEANINGS.keys()
    wanted = {name: (words,) if isinstance(words, str) else words for name, words in MEANINGS.items()}
    assert not {each: text for each, text in found.items() if not any(words in text for words in wanted[each[0]])}


def test_no_command_has_more_options_than_a_person_reads():
    assert max(len(command.params) for command in COMMANDS.values()) <= 16
    assert all(command.help for command in COMMANDS.values())
