"""Tables of the original wire's own writer: made here by hand from the rules, then worked on by everything of ours."""

import pytest
from icedb_client import Client
from icedb_log.changes.partition_removal import remove_partitions
from icedb_log.clean.orphans import sweep_orphans
from icedb_log.errors import BelowHorizon, InvalidRequest, SchemaConflict
from icedb_log.log.fold import fold

DAY = "u=a/d=2023-06-07"
OTHER = "u=b/d=2023-06-08"


@pytest.mark.parametrize("layout", [{}, {"separators": (",", ":")}, {"sort_keys": True}, {"ensure_ascii": False}])
@pytest.mark.parametrize("host", ["ip-10-0-3-7.eu-west-1", "web_1", "m"])
def test_appends_of_any_host_are_read_and_travelled_through(table, require_alike, host, layout):
    times = []
    for number in range(3):
        table.append(DAY, number, host=host, schema={**table.schema, "größe": "DOUBLE"}, **layout)
        times.append(table.clock.now_ms() - 5)
    require_alike([0, 1, 2])
    assert [table.numbers(as_of_ms) for as_of_ms in times] == [[0], [0, 1], [0, 1, 2]]
    assert table.numbers(times[0] - 1) == []


def test_a_whole_life(table, require_alike, strict_reader):
    a = table.append(DAY, 1, 2)
    second = table.put(OTHER, 7)
    third = table.put(DAY, 3)
    b = third, table.write([third, second])
    table.append(DAY, 4)
    _, merged_key = table.merge_as_v3([a, b], [second], extra=", DATE '2023-06-07' AS d")
    require_alike([1, 2, 3, 4, 7])
    table.adopt()
    assert table.problems() == []

    table.flush(20, 21)
    require_alike([1, 2, 3, 4, 7, 20, 21])
    before_ms = table.clock.now_ms()
    assert table.merge().input_count == 3
    require_alike([1, 2, 3, 4, 7, 20, 21])
    removed = table.delete("n = 3 OR n = 20")
    assert (removed.rows_removed, removed.rows_read) == (2, 6)
    require_alike([1, 2, 4, 7, 21])
    assert table.numbers(before_ms) == [1, 2, 3, 4, 7, 20, 21]

    table.clock.advance(20_000)
    assert merged_key in table.vacuum().deleted_logs
    require_alike([1, 2, 4, 7, 21])
    with pytest.raises(BelowHorizon):
        table.numbers(before_ms)
    table.clock.advance(table.grace_ms)
    assert {a[0]["p"], third["p"]} <= set(table.vacuum().deleted_data)
    for _ in range(3):
        table.clock.advance(5 * table.grace_ms)
        assert table.work(sweep_orphans, owner="").deleted == ()
        table.vacuum()
        require_alike([1, 2, 4, 7, 21])
    assert len(table.store.dump("events/_data/")) == 2
    assert len(table.store.dump("events/_log/")) == 1
    assert table.problems() == []
    with Client(store=f"file://{table.store.root}") as client:
        rows = client.query("SELECT n, d FROM events WHERE u = 'a' AND d = '2023-06-07' ORDER BY n")
        assert [row[0] for row in rows.fetchall()] == [1, 2, 4, 21]


def test_r3_states_before_a_merge_of_theirs_are_refused_whose_cleaner_leaves_no_trace(table, require_alike):
    a, b = table.append(DAY, 1), table.append(DAY, 2)
    before_ms = table.clock.now_ms()
    output, merged_key = table.merge_as_v3([a, b])
    table.append(DAY, 3)
    with pytest.raises(BelowHorizon, match=str(merged_key.split("/")[-1].split("_")[0])):
        table.numbers(before_ms)
    # Their cleaner: what it keeps of all merges in a new log file, everything else is gone.
    table.clock.advance(1000)
    table.store.delete([a[0]["p"], a[1], b[0]["p"], b[1], merged_key])
    table.write([output], is_merged=True)
    require_alike([1, 2, 3])
    with pytest.raises(BelowHorizon):
        table.numbers(table.clock.now_ms() - 500)
    assert table.numbers(table.clock.now_ms()) == [1, 2, 3]
    table.adopt()
    horizon_ms = fold(table.reader().read()).horizon_ms
    table.merge(full=True)
    assert fold(table.reader().read()).horizon_ms == horizon_ms  # our merge remembers it


def test_j2_a_log_file_stays_that_their_removal_put_to_death_with_all_it_names(table, require_alike):
    kept, gone = table.put(OTHER, 1), table.put(DAY, 2)
    key = table.write([kept, gone])
    now_ms = table.clock.now_ms()
    table.write([{**gone, "tmb": now_ms}], [{"p": key, "t": now_ms}], is_merged=True)  # names nothing but what goes
    require_alike([1])
    table.adopt()
    for _ in range(3):
        table.clock.advance(5 * table.grace_ms)
        result = table.vacuum()
        assert (result.deleted_logs, result.deleted_data) == ((), ())
        assert ("live", key) in {(waiting.guard, waiting.path) for waiting in result.waiting}
        require_alike([1])
    # A merge of the partition names its rows anew; then both the log file and the removed file can go.
    table.append(OTHER, 3)
    table.merge(full=True)
    table.clock.advance(5 * table.grace_ms)
    table.vacuum()
    table.clock.advance(5 * table.grace_ms)
    table.vacuum()
    require_alike([1, 3])
    assert not {key, gone["p"], kept["p"]} & table.store.dump("events/").keys()


def test_a_partition_that_no_key_of_ours_may_have_keeps_no_other_from_being_merged(table):
    for number in range(4):
        table.append("u=x@example.org", number, 20 + number)
        table.append(DAY, 10 + number)
    table.adopt()
    assert table.merge(full=True).input_count == 4
    assert table.numbers() == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    with pytest.raises(InvalidRequest, match=r"u=x@example\.org"):
        table.delete("n = 1")
    assert {each.code for each in table.problems()} == {"foreign-path"}
    table.work(remove_partitions, lambda _, infos: {i.path for i in infos if "@" in i.path}, owner="drop")
    assert table.numbers() == [10, 11, 12, 13]


def test_what_is_said_twice_or_of_nothing_counts_once(table, require_alike):
    a, b = table.append(DAY, 1), table.append(DAY, 2)
    now_ms = table.clock.now_ms()
    tombstones = [{"p": key, "t": now_ms} for key in (a[1], b[1], a[1], "events/_log/1600000000000_gone.jsonl")]
    dead = [{**a[0], "tmb": now_ms}, {**b[0], "tmb": now_ms}, {**a[0], "tmb": now_ms + 7}]
    output = table.put(DAY, 1, 2)
    table.write([*dead, output, output], tombstones, is_merged=True)
    table.write([], schema={})
    require_alike([1, 2])
    table.adopt()
    table.append(DAY, 3)
    assert table.merge(full=True).row_count == 3
    require_alike([1, 2, 3])
    for _ in range(2):
        table.clock.advance(2 * table.grace_ms)
        table.vacuum()
        require_alike([1, 2, 3])
    assert len(table.store.dump("events/_data/")) == 1


def test_their_unknown_fields_are_carried_by_merges_and_strips(table, strict_reader):
    a, b = table.put(DAY, 1), table.put(OTHER, 2)
    table.write([a, {**b, "codec": {"name": "snappy"}}])
    table.append(DAY, 3)
    table.adopt()
    table.merge(full=True)
    for _ in range(3):
        (marker,) = (m for m in fold(table.reader().read()).live if m.path == b["p"])
        assert dict(marker.extra) == {"codec": {"name": "snappy"}}
        table.clock.advance(2 * table.grace_ms)
        table.vacuum()


def test_a_merge_of_ours_leaves_out_columns_that_theirs_repeated_from_the_path(table, require_alike):
    a, b = table.append(DAY, 1), table.append(DAY, 2)
    output, _ = table.merge_as_v3([a, b], extra=", DATE '2023-06-07' AS d")
    table.adopt()
    assert [(each.code, each.key) for each in table.deep_problems()] == [("path-column", output["p"])]
    table.flush(20)
    table.merge(full=True)
    (marker,) = fold(table.reader().read()).live
    assert table.columns_of(marker.path) == ["u", "ts", "n"]
    assert table.deep_problems() == []
    require_alike([1, 2, 20])


def test_a_merge_halts_at_a_column_that_neither_schema_nor_path_explain(table, require_alike):
    a, b = table.append(DAY, 1), table.append(DAY, 2)
    table.merge_as_v3([a, b], extra=", DATE '2023-06-08' AS d")
    table.adopt()
    table.flush(20)
    with pytest.raises(SchemaConflict, match=r"column 'd' is DATE in data file .*its values are not those of the"):
        table.merge(full=True)
    require_alike([1, 2, 20])


def test_counts_and_statistics_that_their_merge_forgot_come_back(table, require_alike):
    """docs/upgrades.md: by a rewrite, which sorts, or by a rebuild, which reads footers alone."""
    a, b = table.append(DAY, 1), table.append(DAY, 2)
    output, _ = table.merge_as_v3([a, b], extra=", DATE '2023-06-07' AS d")
    table.append(DAY, 7)
    table.adopt()
    assert [marker.row_count for marker in fold(table.reader().read()).live] == [None, None]

    table.rebuild(is_forced=True)
    live = {marker.path: marker for marker in fold(table.reader().read()).live}
    assert {path: marker.row_count for path, marker in live.items()}[output["p"]] == 2
    assert sum(marker.row_count for marker in live.values()) == 3
    assert all({"u", "ts"} <= marker.stats.keys() for marker in live.values())
    assert {each.code for each in table.deep_problems()} == {"path-column"}
    require_alike([1, 2, 7])

    table.rewrite("SELECT * FROM _rows")
    live = fold(table.reader().read()).live
    assert [(marker.row_count, {"u", "ts"} <= marker.stats.keys()) for marker in live] == [(3, True)]
    assert table.deep_problems() == []
    require_alike([1, 2, 7])


def test_two_types_of_a_column_halt_the_table_and_name_both_log_files(table):
    first = table.append(DAY, 1)[1]
    second = table.append(DAY, 2, schema={**table.schema, "n": "HUGEINT"})[1]
    with pytest.raises(SchemaConflict) as caught:
        table.numbers()
    assert first in str(caught.value)
    assert second in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "sql_type"),
    [
        ("{'a': n, 'b': ['x', NULL]}", "STRUCT(a BIGINT, b VARCHAR[])"),
        ("n::DECIMAL(10, 2)", "DECIMAL(10,2)"),
        ("TIMESTAMPTZ '2023-06-07 08:00:00+00' + INTERVAL (n) HOUR", "TIMESTAMP WITH TIME ZONE"),
    ],
)
def test_columns_of_types_that_we_never_write_are_kept_by_flushes_and_merges(table, expression, sql_type):
    for number in range(3):
        marker = table.put(DAY, number, 10 + number, extra=f", {expression} AS x")
        table.write([marker], schema={**table.schema, "x": sql_type})

    def read():
        files = [table.store.uri(marker.path) for marker in fold(table.reader().read()).live]
        query = "SELECT n, x, typeof(x) FROM read_parquet(?, union_by_name = true) WHERE n < 20 ORDER BY n"
        return table.engine.execute(query, [files]).fetchall()

    before = read()
    table.adopt(row_group_rows=2048)
    table.flush(20)
    assert table.merge(full=True).input_count == 4
    assert read() == before
    assert table.numbers() == [0, 1, 2, 10, 11, 12, 20]
