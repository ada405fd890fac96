"""Configurations of tables: whatever stands in one, it is a configuration or one clear error that names what is wrong."""

import json
from typing import get_args

from hypothesis import event, example, given
from hypothesis import strategies as st
from icedb_log.changes.table_changes import FREE_FIELDS, RISING_FIELDS, plan_change
from icedb_log.errors import InvalidRequest, UnsupportedFormat
from icedb_log.keys import TablePaths
from icedb_log.table.stored_config import decode_table_config, encode_table_config
from icedb_log.table.table_config import SQL_TYPES, BadRowsPolicy, Evolution, PartitionField, TableConfig
from icedb_sim.tables.profiles import fuzz_examples

PATHS = TablePaths("events", "wh/events")
PLAIN = TableConfig.create(
    name="events",
    partition=(PartitionField.parse("d=day(ts)"), PartitionField.parse("u=bucket[4](user)")),
    sort=("ts",),
    declared={"ts": "TIMESTAMP", "user": "VARCHAR", "n": "BIGINT"},
    evolution="widen",
    retention_ms=86_400_000,
)

SCALARS = st.one_of(
    st.sampled_from([None, True, False, 0, 1, -1, 999, 1000, 2**31, 2**63, 10**30, 0.5, float("inf"), "", "x", "events", "\ud800", "\x00", "é", "d", "ts", "TIMESTAMP", "bigint", "x" * 300, "SELECT * FROM _rows"]),
    st.text(max_size=8),
    st.integers(200, 200_000).map(lambda count: "x" * count),
)  # fmt: skip
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.sampled_from(["ts", "user", "n", "TS", "new", "", "a\nb", "name", "column"]), SCALARS | st.sampled_from(SQL_TYPES), max_size=3),
    st.lists(st.fixed_dictionaries({}, optional={"name": SCALARS, "column": SCALARS, "transform": SCALARS | st.sampled_from(["day", "bucket", "identity"]), "width": SCALARS}), max_size=2),
)  # fmt: skip
ODD_FIELDS = st.dictionaries(st.sampled_from([*TableConfig.model_fields, "nonsense"]), VALUES, max_size=4)
COLUMNS = st.sampled_from(["ts", "user", "n", "größe", "a)b", "a=b", "x" * 255])
MILLISECONDS = st.integers(1000, 10**12)
SMALL = st.integers(2, 900)
GOOD_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "partition": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["d", "u", "x"]), "column": COLUMNS}), max_size=2),
        "sort": st.lists(COLUMNS, max_size=2),
        "declared": st.dictionaries(COLUMNS, st.sampled_from(SQL_TYPES), max_size=3),
        "evolution": st.sampled_from(get_args(Evolution)),
        "on_bad_rows": st.sampled_from(get_args(BadRowsPolicy)),
        **dict.fromkeys(("merge_fan_in", "max_partitions_per_flush"), SMALL),
        **dict.fromkeys(("data_grace_ms", "log_grace_ms", "orphan_age_ms", "seal_age_ms", "audit_retention_ms", "quarantine_retention_ms"), MILLISECONDS),
        "iceberg": st.sampled_from(["on-demand", "on-commit"]),
        "iceberg_bounds": st.sampled_from(["on", "off"]),
        "target_file_bytes": st.integers(1024, 2**33),
    },
)  # fmt: skip
FIELDS = st.one_of(
    ODD_FIELDS,
    GOOD_FIELDS.flatmap(lambda all_fields: st.lists(st.sampled_from(sorted(all_fields) or ["sort"]), max_size=4).map(lambda names: {name: all_fields[name] for name in names if name in all_fields})),
    st.builds(lambda good, odd: {**good, **odd}, GOOD_FIELDS, st.dictionaries(st.sampled_from([*TableConfig.model_fields]), VALUES, max_size=1)),
)  # fmt: skip


def check_message(error):
    message = str(error)
    assert 0 < len(message) < 4000, message[:500]
    assert "Traceback" not in message
    return message


@fuzz_examples(250)
@given(FIELDS, st.booleans())
@example({"partition": ["d=day(ts)"]}, True)
@example({"declared": 5}, True)
@example({"view_of": "../x", "view_query": "SELECT 1"}, True)
def test_a_configuration_is_made_or_refused_by_name(fields, is_named):
    given_fields = {"name": "events", **fields} if is_named else fields
    try:
        config = TableConfig.create(**given_fields)
    except InvalidRequest as error:
        event("refused")
        message = check_message(error)
        assert any(name in message for name in (*given_fields, "name", "partition", "column")), message
        return
    event("made")
    body = encode_table_config(config)
    assert decode_table_config(TablePaths(config.name, f"wh/{config.name}"), body) == config


@fuzz_examples(200)
@given(FIELDS)
@example({"declared": None})
@example({"declared": {"n": None}})
@example({"merge_query": "SELECT * FROM _rows"})
def test_a_change_is_made_or_refused(fields):
    try:
        altered = plan_change(PLAIN, fields)
    except InvalidRequest as error:
        event("refused")
        check_message(error)
        return
    event("made")
    before, after = dict(PLAIN), dict(altered)
    changed = {name for name in after if before[name] != after[name]}
    assert changed <= FREE_FIELDS | RISING_FIELDS | {"declared"}
    assert changed <= fields.keys()
    for name in changed & RISING_FIELDS:
        assert after[name] > before[name]
    assert decode_table_config(PATHS, encode_table_config(altered)) == altered


def mutate(body, edits):
    for at, inserted, removed in edits:
        place = at % (len(body) + 1)
        body = body[:place] + inserted + body[place + removed :]
    return body


BODIES = st.one_of(
    st.builds(
        mutate,
        st.just(encode_table_config(PLAIN)),
        st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=3), st.integers(0, 4)), max_size=3),
    ),
    FIELDS.map(lambda fields: json.dumps({**json.loads(encode_table_config(PLAIN)), **fields}).encode()),
    st.binary(max_size=50),
    st.sampled_from([b"", b"null", b"[]", b"{}", b"[" * 5000, b'{"a":' * 5000, b'{"name":"events","name":"x"}', b'{"name":1e400}', b'{"name":"\xff"}']),
)  # fmt: skip


@fuzz_examples(200)
@given(BODIES)
@example(json.dumps({"name": "events", "view_of": "../x", "view_query": "SELECT 1"}).encode())
def test_what_stands_in_the_store_is_read_or_unsupported(body):
    try:
        config = decode_table_config(PATHS, body)
    except UnsupportedFormat as error:
        event("refused")
        assert check_message(error).startswith(PATHS.config_key)
        return
    event("read")
    assert decode_table_config(PATHS, encode_table_config(config)) == config


PARTITION_TEXTS = st.one_of(
    st.text(max_size=12),
    st.builds(
        lambda n, t, w, c: f"{n}{t}{w}({c})",
        st.sampled_from(["", "d=", "=", "a b=", "é=", "d==", " d = "]),
        st.sampled_from(["day", "bucket", "truncate", "identity", "DAY", "", "week", "year"]),
        st.sampled_from(["", "[4]", "[0]", "[-1]", "[9999999]", "[" + "9" * 5000 + "]", "[²]", "[٣]", "[]", "[4", "[4][4]"]),
        st.sampled_from(["ts", "", " ", "a)b", "(", "x" * 300, "\x00", "\ud800", "é", "ts)"]),
    ),
    st.sampled_from(["(" * 5000, "a" * 100_000, "day(" * 3000 + "x" + ")" * 3000]),
)  # fmt: skip


@fuzz_examples(200)
@given(PARTITION_TEXTS)
@example("d=identity(a)b)")
def test_the_text_of_a_partition_is_read_or_refused(text):
    try:
        field = PartitionField.parse(text)
    except InvalidRequest as error:
        event("refused")
        check_message(error)
        return
    event("read")
    again = PartitionField.parse(str(field))
    assert again.transform == field.transform
    assert (again.name, again.column, again.width) == (field.name, field.column, field.width)
