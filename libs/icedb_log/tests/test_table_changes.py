"""Changes of a configuration: which are safe, and that two of them never lose one."""

import pytest
from icedb_log.changes.table_changes import FREE_FIELDS, RISING_FIELDS, alter_table_config, plan_change
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, NotFound, Unavailable
from icedb_log.keys import TablePaths
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.table.time_columns import TimeColumn
from icedb_sim.fakes.scripted_store import Effect, Fault


def alter(table, **change):
    return alter_table_config(table, change, clock=table.clock)


def test_a_policy_is_changed_and_everything_else_stays(table):
    altered = alter(table, evolution="widen", on_bad_rows="quarantine_rows", max_partitions_per_flush=7)
    assert altered == read_table_config(table)
    assert altered.model_dump(exclude={"evolution", "on_bad_rows", "max_partitions_per_flush"}) == (
        table.config.model_dump(exclude={"evolution", "on_bad_rows", "max_partitions_per_flush"})
    )
    assert (altered.evolution, altered.on_bad_rows, altered.max_partitions_per_flush) == ("widen", "quarantine_rows", 7)


def test_the_same_change_again_writes_nothing(table):
    alter(table, evolution="widen")
    table.store.calls.clear()
    alter(table, evolution="widen", name="t", log_grace_ms=table.config.log_grace_ms)
    assert table.store.keys_of("put_if_match") == []


@pytest.mark.parametrize(
    "field",
    sorted(
        TableConfig.model_fields.keys()
        - FREE_FIELDS
        - RISING_FIELDS
        - {"declared", "promoted", "promoted_below", "times"}
    ),
)
def test_what_data_files_and_ids_depend_on_is_fixed(table, field):
    with pytest.raises(InvalidRequest, match=f"{field} cannot be changed"):
        alter(table, **{field: "other"})
    assert read_table_config(table) == table.config


@pytest.mark.parametrize("field", sorted(RISING_FIELDS))
def test_a_grace_period_only_grows(table, field):
    value = getattr(table.config, field)
    assert getattr(alter(table, **{field: value + 1}), field) == value + 1
    with pytest.raises(InvalidRequest, match=r"is [\d.]+ min and cannot become .* min: .*may only grow"):
        alter(table, **{field: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"evolution": "any"}, "evolution"),
        ({"evolution": "strict"}, "declare"),
        ({"merge_fan_in": 1}, "merge_fan_in"),
        ({"declared": {"x": "INT"}}, "'INT' is unknown"),
        ({"nonsense": 1}, "nonsense"),
        ({"nonsense": None}, "nonsense"),
    ],
)
def test_a_change_has_to_make_a_valid_configuration(table, change, words):
    with pytest.raises(InvalidRequest, match=words):
        alter(table, **change)
    assert read_table_config(table) == table.config


def test_columns_are_declared_and_declarations_taken_back(table):
    assert alter(table, declared={"a": "DATE", "b": "VARCHAR"}).declared == {"a": "DATE", "b": "VARCHAR"}
    assert alter(table, declared={"a": "TIMESTAMP", "b": None}).declared == {"a": "TIMESTAMP"}
    assert alter(table, evolution="strict").evolution == "strict"
    with pytest.raises(InvalidRequest, match="none is declared"):
        alter(table, declared={"a": None})


def test_a_declaration_agrees_with_the_log_or_widens_it(table):
    table.stage([{"id": 1, "p": "a", "n": 1, "X": "x"}])
    table.flush()
    assert alter(table, declared={"n": "BIGINT"}).declared == {"n": "BIGINT"}
    for declared in ({"n": "VARCHAR"}, {"X": "BIGINT"}, {"x": "VARCHAR"}, {"N": "BIGINT", "n": None}):
        with pytest.raises(InvalidRequest, match="cannot be declared"):
            alter(table, declared=declared)
    alter(table, declared={"n": "DOUBLE"})
    table.append(2)
    assert table.snapshot().schema["n"] == "DOUBLE"
    with pytest.raises(InvalidRequest, match="the log has 'n' as DOUBLE"):
        alter(table, declared={"n": "BIGINT"})
    assert alter(table, declared={"n": None}).declared == {}


@pytest.mark.parametrize("column", ["id", "p"])
def test_columns_that_files_are_laid_out_by_keep_their_declaration(table, column):
    for sql_type in ("DATE", "VARCHAR"):
        with pytest.raises(InvalidRequest, match="laid out by"):
            alter(table, declared={column: sql_type})


def test_a_change_that_meets_another_one_is_made_on_top_of_it(table):
    def other():
        table.store.inner.put(
            table.paths.config_key,
            plan_change(table.config, {"merge_fan_in": 5}).model_dump_json().encode(),
        )

    table.store.script = [Fault("put_if_match", None, "table.json", before=other)]
    altered = alter(table, evolution="widen")
    assert (altered.merge_fan_in, altered.evolution) == (5, "widen")


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.TRY_TWICE])
def test_w2_a_lost_answer_of_a_change_that_landed_is_found_out(table, effect):
    table.store.script = [Fault("put_if_match", effect, "table.json")]
    assert alter(table, evolution="widen").evolution == "widen"
    assert read_table_config(table).evolution == "widen"


def test_a_change_without_an_answer_is_unknown(table):
    table.store.script = [Fault("put_if_match", Effect.DROP, "table.json")] * 10
    with pytest.raises(CommitOutcomeUnknown):
        alter(table, evolution="widen")
    table.store.script = [Fault("put_if_match", Effect.REFUSE, "table.json")] * 10
    with pytest.raises(Unavailable, match="10 times"):
        alter(table, evolution="widen")


def test_a_table_that_does_not_exist_is_not_found(table):
    with pytest.raises(NotFound):
        alter_table_config(TableStore(table.store, TablePaths("ghost", "wh/ghost")), {}, clock=table.clock)


def test_what_numbers_count_and_which_times_are_plausible_may_change(table):
    alter(table, declared={"at": "TIMESTAMP", "n": "BIGINT"}, times={"at": {"unit": "epoch_s"}})
    altered = alter(table, times={"at": {"from_ms": 0, "to_ms": 1}, "n": {"unit": "epoch_us"}})
    assert altered.times == {
        "at": TimeColumn(unit="epoch_s", from_ms=0, to_ms=1),
        "n": TimeColumn(unit="epoch_us"),
    }
    assert alter(table, times={"at": {"from_ms": None, "to_ms": None}}).times["at"] == TimeColumn(unit="epoch_s")
    assert alter(table, times={"n": {"unit": None}}).times.keys() == {"at"}
    with pytest.raises(InvalidRequest, match="not None"):
        alter(table, times={"other": {"unit": "epoch_s"}})
    for times in ("x", {"at": "epoch_s"}):
        with pytest.raises(InvalidRequest, match="give what changes by column"):
            alter(table, times=times)
    assert alter(table, declared={"at": None}).times == {}


def test_the_unit_that_data_files_are_laid_out_by_stays():
    config = TableConfig.create(
        name="t",
        partition=(PartitionField.parse("d=day(ts)"), PartitionField.parse("h=hour(at)")),
        declared={"ts": "BIGINT"},
        times={"ts": {"unit": "epoch_ms"}},
    )
    for unit in ("epoch_s", None):
        with pytest.raises(InvalidRequest, match="its unit is epoch_ms for good"):
            plan_change(config, {"times": {"ts": {"unit": unit}}})
    changed = plan_change(
        config, {"times": {"ts": {"unit": "epoch_ms", "from_ms": 0, "to_ms": 9}, "at": {"unit": "epoch_s"}}}
    )
    assert changed.times["ts"].to_ms == 9
    assert [field.unit for field in changed.partition] == ["epoch_ms", "epoch_s"]


def test_a_declaration_that_the_log_contradicts_can_be_put_right_also_for_a_partition():
    config = TableConfig.create(name="t", partition=(PartitionField.parse("d=day(id)"),))
    for change in ({"declared": {"id": "DATE"}}, {"declared": {"id": None}}):
        with pytest.raises(InvalidRequest, match="for good"):
            plan_change(config, change, logged={"id": "BIGINT"})
    change = {"declared": {"id": "BIGINT"}, "times": {"id": {"unit": "epoch_ms"}}}
    with pytest.raises(InvalidRequest, match="for good"):
        plan_change(config, change)
    mended = plan_change(config, change, logged={"id": "BIGINT"})
    assert (mended.declared["id"], mended.partition[0].unit) == ("BIGINT", "epoch_ms")
