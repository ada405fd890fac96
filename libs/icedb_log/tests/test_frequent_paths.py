"""Paths that are promoted by themselves: which ones, how many, and that what a person has decided stays."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.changes import frequent_paths
from icedb_log.changes.frequent_paths import promote_by_sample
from icedb_log.changes.table_changes import alter_table_config, choose_paths, promote_frequent_paths
from icedb_log.errors import InvalidRequest
from icedb_log.table.path_shares import MAX_KEYS, PathShare, find_path_shares
from icedb_log.table.promoted_paths import MAX_PROMOTED, PROMOTE_LIMIT, add_promotions, parse_promotions
from icedb_log.table.table_config import TableConfig
from icedb_sim.tables.small_table import SmallTable

BELOW = {"declared": {"p": "VARCHAR", "q": "VARCHAR"}, "promoted_below": (("p",),)}


class Sampler:
    """Gives the same rows for any files."""

    def __init__(self, *events):
        self.events, self.asked = events, []

    def sample_texts(self, table, files, column):
        self.asked.append((column, len(files)))
        return [json.dumps(event) for event in self.events]


def alter(table, *texts):
    change = add_promotions({}, parse_promotions(texts, option="--promote"), option="--promote", may_end=True)
    return alter_table_config(table, change, clock=table.clock)


def shares_of(*events, column="p"):
    return find_path_shares(column, [json.dumps(event) for event in events])


def chosen(*events, **fields):
    config = TableConfig.create(name="events", **{**BELOW, **fields})
    return {column: each.sql_type for column, each in choose_paths(config, shares_of(*events), logged={}).items()}


def test_scalars_of_one_type_become_columns_of_it():
    event = {"s": "x", "i": 1, "d": 1.5, "b": True, "n": None, "list": [1], "deep": {"s": "y"}, "huge": 2**63}
    assert chosen(event, {"i": 2, "d": 2}) == {
        "p__d": "DOUBLE", "p__i": "BIGINT", "p__b": "BOOLEAN", "p__deep__s": "VARCHAR", "p__s": "VARCHAR",
    }  # fmt: skip
    assert chosen({"k": 1}, {"k": "x"}) == {}, "mixed types stay text"
    assert chosen({"k": {"x": 1}}, {"k": "x"}) == {"p__k__x": "BIGINT"}


@pytest.mark.parametrize(("row_count", "count"), [(10, 1), (11, 0)])
def test_a_path_stands_in_a_share_of_all_rows(row_count, count):
    assert len(chosen({"k": 1}, *({} for _ in range(row_count - 1)))) == count
    assert find_path_shares("p", ["x", None, "[1]", '{"k":null}', '{"k":1}'])[0].share == 0.2


def promoted(filled, *, ended=0):
    paths = {f"x{place}": ("p", f"x{place}") if place < filled else () for place in range(filled + ended)}
    return {"declared": {**BELOW["declared"], **dict.fromkeys(paths, "VARCHAR")}, "promoted": paths}


def test_the_most_frequent_come_first_up_to_the_bound_of_the_table():
    rows = [{"a": 1, "b": 1, "c": 1}, {"b": 1, "c": 1}, {"c": 1}]
    two = PROMOTE_LIMIT - 2
    assert list(chosen(*rows, **promoted(two))) == ["p__c", "p__b"]
    assert list(chosen(*rows, **promoted(two + 1))) == ["p__c"], "those of a person count"
    assert chosen(*rows, **promoted(PROMOTE_LIMIT)) == {}
    assert list(chosen(*rows, **promoted(two, ended=9))) == ["p__c", "p__b"], "what is filled no more makes room"
    assert list(chosen(*rows, **promoted(two, ended=MAX_PROMOTED - two - 1))) == ["p__c"], (
        "up to all that a table may have"
    )


def test_a_map_takes_no_place_and_no_memory():
    rows = [{"by_id": {f"id{i}{key}": {"n": 1} for key in "abcdefghij"}, "plan": "x"} for i in range(1_000)]
    found = find_path_shares("p", map(json.dumps, rows))
    assert [each.path for each in found] == [("p", "by_id"), ("p", "plan")]
    rows = [{f"rare{i}": 1} for i in range(10_000)]
    assert find_path_shares("p", map(json.dumps, rows)) == ()
    few = [{f"k{i}": 1 for i in range(MAX_KEYS)}]
    assert len(shares_of(*few)) == MAX_KEYS


def test_only_what_lies_below_and_has_a_name_of_its_own():
    rows = [{"k": 1, "in": {"k": 1}, "*": 1, "": 1, "taken": 1, "PLACE": 1, "x" * 254: 1}]
    there = {
        "declared": {**BELOW["declared"], "p__taken": "VARCHAR", "named": "BIGINT"},
        "promoted": {"named": ("p", "k")},
    }
    place = {"partition": [{"name": "p__place", "column": "q"}]}
    assert list(chosen(*rows, **there, **place)) == ["p__in__k"]
    assert list(chosen(*rows, promoted_below=(("p", "in"),))) == ["p__in__k"]
    assert chosen(*rows, promoted_below=(("q",),)) == {}


@given(
    st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)
        )
    )
)
def test_any_text_has_shares_between_0_and_1(values):
    found = find_path_shares("p", map(json.dumps, values))
    assert all(0 < each.share <= 1 for each in found)
    assert len({each.path for each in found}) == len(found)


def with_rows():
    table = SmallTable()
    alter(table, "body.*")
    table.append(1)
    table.append(2)
    return table


def promote(table, *events, monkeypatch=None):
    sampler = Sampler(*events)
    return promote_by_sample(table.opened(), sampler).config, sampler


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(frequent_paths, "MIN_ROWS", 2)


def test_what_is_frequent_is_promoted_and_filled():
    table = with_rows()
    config, sampler = promote(table, {"x": "a"}, {"x": "b"})
    assert (config.promoted, sampler.asked) == ({"body__x": ("body", "x")}, [("body", 2)])
    assert config == table.opened().config
    assert table.status().filling == ("body__x",)
    while table.merge().committed_key is not None:
        pass
    assert table.snapshot().schema["body__x"] == "VARCHAR"
    assert promote(table, {"x": "a"}, {"x": "b"})[0] == config, "the same again changes nothing"


def test_few_rows_and_a_table_that_asks_for_nothing_decide_nothing():
    table = with_rows()
    assert promote(table, {"x": "a"})[0].promoted == {}
    alter(table, "body.*:off")
    config, sampler = promote(table, {"x": "a"}, {"x": "b"})
    assert (config.promoted, config.promoted_below, sampler.asked) == ({}, (), [])
    with pytest.raises(InvalidRequest, match="a new table promotes nothing by itself"):
        add_promotions({}, parse_promotions(["p.*:off"], option="--promote"), option="--promote")


def test_what_was_taken_back_does_not_come_again():
    table = with_rows()
    promote(table, {"x": "a"}, {"x": "b"})
    alter(table, "body.x:off")
    config, _ = promote(table, {"x": "a", "y": 1}, {"x": "b", "y": 2})
    assert config.promoted == {"body__x": (), "body__y": ("body", "y")}


def test_who_comes_second_takes_what_the_first_has_promoted():
    table = with_rows()
    late = replace(table.opened())
    promote(table, {"x": 1}, {"x": 2})
    config = promote_by_sample(late, Sampler({"x": 1.5, "y": 1}, {"x": 2.5, "y": 1})).config
    assert config.promoted == {"body__x": ("body", "x"), "body__y": ("body", "y")}
    assert config.declared["body__x"] == "BIGINT"
    table.append(3)
    again = promote_frequent_paths(table.opened(), [PathShare(("body", "x"), 1.0, "VARCHAR")], clock=table.clock)
    assert again == config


@pytest.mark.parametrize("text", ["p.*:BIGINT", "p.* as name", "*", "p.*.x"])
def test_a_star_is_the_last_key_and_has_neither_type_nor_name(text):
    with pytest.raises(InvalidRequest):
        parse_promotions([text], option="--promote")


def test_a_star_below_keys_and_the_column_that_is_declared_for_it():
    fields = add_promotions({}, parse_promotions(["p.*", "p.deep.*", "p.k:BIGINT"], option="promote"), option="promote")
    assert fields["promoted_below"] == (("p",), ("p", "deep"))
    assert fields["declared"] == {"p": "VARCHAR", "p__k": "BIGINT"}
    assert TableConfig.create(name="events", **fields).promoted_below == fields["promoted_below"]
    with pytest.raises(InvalidRequest, match=r"promoted below n: the column must be declared VARCHAR"):
        TableConfig.create(name="events", declared={"n": "BIGINT"}, promoted_below=(("n",),))
