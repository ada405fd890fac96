"""Promoted paths: how they are written, which configurations have them, and who may not touch them."""

import pytest
from icedb_log.changes.table_changes import plan_change
from icedb_log.errors import InvalidRequest
from icedb_log.repair.adoption import require_fit
from icedb_log.table.column_names import ColumnNames
from icedb_log.table.promoted_paths import (
    MAX_PROMOTED,
    Promotion,
    add_promotions,
    find_path_problem,
    parse_promotions,
    spell_path,
)
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_sim.tables.row_footers import RowFooterReader
from icedb_sim.tables.small_table import SmallTable


def parse(text):
    return Promotion.parse(text, option="--promote")


def make(*texts, **fields):
    promotions = parse_promotions(texts, option="--promote")
    return TableConfig.create(name="t", **add_promotions(fields, promotions, option="--promote"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("properties.plan", Promotion("properties__plan", ("properties", "plan"))),
        ("p.price:double", Promotion("p__price", ("p", "price"), "DOUBLE")),
        (" p.a : DECIMAL( 9, 2 )  AS  b ", Promotion("b", ("p", "a"), "DECIMAL(9,2)")),
        ("context.page.url as page url", Promotion("page url", ("context", "page", "url"))),
        ("p.t:epoch_ms", Promotion("p__t", ("p", "t"), "BIGINT", "epoch_ms")),
        ("p.t:TIMESTAMP(epoch_s)", Promotion("p__t", ("p", "t"), "TIMESTAMP", "epoch_s")),
        (r'"a.b"."say \"hi\"":BIGINT', Promotion('a.b__say "hi"', ("a.b", 'say "hi"'), "BIGINT")),
        ("größe.as", Promotion("größe__as", ("größe", "as"))),
        ('p."as x"', Promotion("p__as x", ("p", "as x"))),
    ],
)
def test_a_path_is_read_and_written_in_one_form(text, expected):
    found = parse(text)
    assert found == expected
    assert parse(spell_path(found.path)).path == found.path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("plan", "at least one key"),
        ("", "not understood"),
        ("p..x", "not understood"),
        ("p.x:", "not understood"),
        ("p.x y", "not understood"),
        ('p."x', "not understood"),
        ("p.*.x", "stands for none"),
        ('p.""', "1 to 255 bytes of printable"),
        (r'p."\u0000"', "1 to 255 bytes of printable"),
        ("p.x:VARCHAR(7)", "is unknown"),
        (".".join("p" * 99), "at most 32"),
    ],
)
def test_what_is_no_path_is_refused_with_the_forms(text, reason):
    with pytest.raises(InvalidRequest, match=rf"--promote .*{reason}.*write PATH\[:TYPE\] \[as NAME\]"):
        parse(text)


def test_the_column_of_the_text_and_the_promoted_ones_are_declared():
    config = make("p.plan", "p.n:BIGINT as n", "q.t:epoch_s", sort=("n",))
    assert config.declared == {"p": "VARCHAR", "p__plan": "VARCHAR", "n": "BIGINT", "q": "VARCHAR", "q__t": "BIGINT"}
    assert config.times["q__t"].unit == "epoch_s"
    assert config.find_promoted(["p"]) == {"p__plan": "VARCHAR", "n": "BIGINT"}
    assert TableConfig.model_validate_json(config.model_dump_json()) == config
    assert TableConfig.create(name="t", promoted={"x": ("p", "x")}).declared == {"p": "VARCHAR", "x": "VARCHAR"}


@pytest.mark.parametrize(
    ("texts", "fields", "reason"),
    [
        (["p.a as x", "p.b as x"], {}, "column 'x' is that of p.a already"),
        (["p.a as x"], {"declared": {"x": "BIGINT"}}, "declared besides --promote: give its type there, 'p.a:BIGINT'"),
        (["p.a"], {"declared": {"p": "BIGINT"}}, "column 'p' must be declared VARCHAR"),
        (["p.a as x", "x.b"], {}, "'x' is promoted itself"),
        (["p.a as P"], {}, "differ only in case"),
        (["p.a as p"], {}, "'p' is promoted itself"),
        (["p.a:BLOB"], {}, "type 'BLOB' is unknown"),
        (["p.a as d"], {"partition": (PartitionField.parse("d=day(ts)"),)}, "named like the partition d=day"),
        ([f"p.k{place}" for place in range(MAX_PROMOTED + 1)], {}, f"at most {MAX_PROMOTED}"),
        (["p.a as __filename"], {}, "Arrow reads no file with it"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(texts, fields, reason):
    with pytest.raises(InvalidRequest, match=reason):
        make(*texts, **fields)


def test_a_stored_path_is_checked_as_well():
    with pytest.raises(InvalidRequest, match=r"promoted column 'x': a path is"):
        TableConfig.create(name="t", promoted={"x": ("p",)})
    with pytest.raises(InvalidRequest, match="promoted"):
        TableConfig.create(name="t", promoted={"x": "p.x"})
    assert find_path_problem(("p", "x")) is None


def test_no_batch_gives_a_promoted_column():
    names = ColumnNames(make("p.plan"))
    assert "promoted: its values are those of p.plan" in (names.find_problem("P__plan") or "")
    assert names.find_problem("p") is None


def test_paths_types_and_units_stay_as_they_were_created():
    config = make("p.plan", "p.t:TIMESTAMP(epoch_s)")
    with pytest.raises(InvalidRequest, match=r"'p__plan' is promoted as VARCHAR for good"):
        plan_change(config, {"declared": {"p__plan": "BIGINT"}})
    with pytest.raises(InvalidRequest, match=r"'p__plan' is promoted"):
        plan_change(config, {"declared": {"p__plan": None}})
    with pytest.raises(InvalidRequest, match="its unit is epoch_s for good"):
        plan_change(config, {"times": {"p__t": {"unit": "epoch_ms"}}})
    with pytest.raises(InvalidRequest, match="'p' must be declared VARCHAR"):
        plan_change(config, {"declared": {"p": "BIGINT"}})
    assert plan_change(config, {"declared": {"p": None}}) == config, "the column of the text is declared for its paths"
    ranged = plan_change(config, {"times": {"p__t": {"from_ms": 0, "to_ms": 1}}})
    assert ranged.times["p__t"].to_ms == 1


def test_a_log_with_rows_is_not_laid_out_by_promoted_columns():
    table = SmallTable()
    config = make("p.plan").model_copy(update={"name": table.name, "partition": table.config.partition})
    table.append(1)
    footers = RowFooterReader(table.store)
    require_fit(table, config, clock=table.clock, footers=footers)
    by_path = config.model_copy(update={"sort": ("p__plan",)})
    with pytest.raises(InvalidRequest, match="not laid out by the promoted column 'p__plan'"):
        require_fit(table, by_path, clock=table.clock, footers=footers)
    taken = make("p.plan as id").model_copy(update={"name": table.name, "declared": {"p": "VARCHAR"}})
    with pytest.raises(InvalidRequest, match="has column 'id' already"):
        require_fit(table, taken, clock=table.clock, footers=footers)
