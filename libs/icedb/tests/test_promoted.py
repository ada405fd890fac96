"""Promoted paths as users have them: by Python and by the command, from the first row through merges and changes."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb import connect
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest
from icedb_log.table.promoted_paths import add_promotions, parse_promotions

PATHS = ["p.plan", "p.price:DOUBLE", "c.page.url as url"]
ROWS = [
    {"n": 1, "p": {"plan": "pro", "price": 2.5}, "c": {"page": {"url": "/a"}}},
    {"n": 2, "p": {"plan": "free", "price": "?"}, "c": {}},
    {"n": 3, "p": {"plan": None}},
]
BY_COLUMN = "select n, p__plan, p__price, url from events order by n"
BY_TEXT = (
    "select n, p->>'$.plan', case when json_type(p, '$.price') <> 'VARCHAR' then cast(p->>'$.price' as double) end, "
    "c->>'$.page.url' from events order by n"
)


@pytest.fixture
def lake(tmp_path, cli_env):
    with connect(tmp_path / "lake") as lake:
        yield lake


def rows_of(lake, sql):
    return lake.query(sql).fetchall()


def test_columns_and_text_agree_whatever_is_done_to_the_rows(lake):
    events = lake.create_table("events", promote=PATHS, sort=["p__plan"])
    events.append(ROWS)
    events.append(pa.table({"n": [4, 5], "p": [{"plan": "pro", "price": 1.0}, None]}))
    with events.appender() as appender:
        appender.append([{"n": 6, "p": {"plan": "max"}}])
    expected = [
        (1, "pro", 2.5, "/a"),
        (2, "free", None, None),
        (3, None, None, None),
        (4, "pro", 1.0, None),
        (5, None, None, None),
        (6, "max", None, None),
    ]
    assert rows_of(lake, BY_COLUMN) == rows_of(lake, BY_TEXT) == expected
    events.merge(full=True)
    assert rows_of(lake, BY_COLUMN) == expected
    events.delete("p__plan = 'free'")
    events.rewrite("select * replace (replace(p, 'pro', 'plus') as p) from _rows")
    changed = [(n, "plus" if plan == "pro" else plan, *rest) for n, plan, *rest in expected if plan != "free"]
    assert rows_of(lake, BY_COLUMN) == rows_of(lake, BY_TEXT) == changed


def test_values_that_do_not_fit_are_counted(lake):
    events = lake.create_table("events", promote=PATHS)
    for rows in (ROWS, ROWS[1:]):
        lake.client.enqueue("events", rows)
    assert events.flush().misfit_count == 2
    assert events.rewrite("select * from _rows").misfit_count == 2


def test_a_view_has_paths_of_its_own(lake):
    events = lake.create_table("events", promote=PATHS, columns={"n": "BIGINT"})
    view = lake.create_table(
        "pages", view_of="events", view_query="select n, c, p__plan as plan from _rows", promote=["c.page.url as url"]
    )
    events.append(ROWS)
    lake.work(until_idle=True)
    assert view.snapshot().row_count == 3
    assert rows_of(lake, "select n, plan, url from pages order by n") == [
        (1, "pro", "/a"),
        (2, "free", None),
        (3, None, None),
    ]


def test_promotions_are_refused_where_they_cannot_be(lake):
    with pytest.raises(InvalidRequest, match=r"promote 'p': a path is the name of a column"):
        lake.create_table("events", promote=["p"])
    with pytest.raises(InvalidRequest, match=r"promote='p.x'.*: give a list"):
        lake.create_table("events", promote="p.x")
    events = lake.create_table("events", promote=PATHS)
    with pytest.raises(InvalidRequest, match=r"column 'url' is promoted: its values are those of c.page.url"):
        events.append([{"n": 1, "url": "/b"}])


def test_the_command_creates_shows_and_describes_them(folder, run_icedb, tmp_path):
    paths = [word for path in PATHS for word in ("--promote", path)]
    run_icedb("table", "create", "events", *paths, "--partition", "plan=p__plan")
    batch = tmp_path / "events.ndjson"
    batch.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS[:2]))
    run_icedb("ingest", "events", str(batch), "--commit")
    shown = [line.split() for line in run_icedb("table", "show", "events").splitlines()]
    assert ["p__price", "DOUBLE", "p.price:DOUBLE"] in shown
    assert ["url", "VARCHAR", "c.page.url:VARCHAR"] in shown
    described = [line.split() for line in run_icedb("describe", "events").splitlines()]
    assert ["p__plan", "VARCHAR", "0", "%", "2", "free", "pro", "p.plan"] in described
    found = json.loads(run_icedb("describe", "events", "-o", "json"))["columns"]
    assert {each["name"]: each["promoted_from"] for each in found if each["promoted_from"]} == {
        "p__plan": ["p", "plan"],
        "p__price": ["p", "price"],
        "url": ["c", "page", "url"],
    }


def test_a_path_can_be_promoted_when_rows_are_there(folder, run_icedb, tmp_path):
    run_icedb("table", "create", "events")
    batch = tmp_path / "events.ndjson"
    batch.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    run_icedb("ingest", "events", str(batch), "--commit")
    run_icedb("table", "alter", "events", *(word for path in PATHS for word in ("--promote", path)))
    shown = [line.split() for line in run_icedb("table", "show", "events").splitlines()]
    assert ["url", "VARCHAR", "c.page.url:VARCHAR", "(filling)"] in shown
    assert "p__plan, p__price, url: 1 data file to be written anew" in run_icedb("status", "events")
    assert "p__plan" not in run_icedb("query", "select * from events")
    run_icedb("merge", "events", "--local")
    assert "filling" not in run_icedb("status", "events")
    found = json.loads(run_icedb("query", BY_COLUMN, "-o", "json"))["rows"]
    assert [row["p__plan"] for row in found] == ["pro", "free", None]
    run_icedb("table", "alter", "events", "--promote", "p.plan:off")
    shown = [line.split() for line in run_icedb("table", "show", "events").splitlines()]
    assert ["p__plan", "VARCHAR", "VARCHAR,", "filled", "no", "more"] in shown


def test_frequent_paths_become_columns_by_themselves(folder, run_icedb, tmp_path):
    run_icedb("table", "create", "events", "--promote", "p.*")
    batch = tmp_path / "events.ndjson"
    rows = [{"n": i, "p": {"plan": "pro", "n": i, f"rare{i}": 1, "tags": [1]}, "c": {"k": 1}} for i in range(200)]
    rows += [{"n": 200, "p": {"n": "?"}}, {"n": 201}]
    batch.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run_icedb("ingest", "events", str(batch), "--commit")
    assert "p.*" in run_icedb("table", "show", "events")
    paths = {tuple(each["path"]): each for each in json.loads(run_icedb("describe", "events", "-o", "json"))["paths"]}
    assert paths["p", "plan"] == {"path": ["p", "plan"], "share": 200 / 202, "type": "VARCHAR", "column": None}
    assert paths["p", "n"]["type"] is None and paths["p", "tags"]["type"] is None
    run_icedb("merge", "events", "--local")
    assert json.loads(run_icedb("query", "select count(p__plan) c from events", "-o", "json"))["rows"] == [{"c": 200}]
    words = run_icedb("describe", "events").split("\n")
    assert any(line.split() == ["p.plan", "~", "99.01", "%", "VARCHAR", "p__plan"] for line in words)
    run_icedb("table", "alter", "events", "--promote", "p.plan:off", "--promote", "c.*")
    run_icedb("merge", "events", "--local")
    shown = run_icedb("table", "show", "events")
    assert "p.*, c.*" in shown and "c__k" in shown and "filled no more" in shown
    run_icedb("table", "alter", "events", "--promote", "p.*:off", "--promote", "c.*:off")
    assert "promoted by itself" not in run_icedb("table", "show", "events")


def promote(table, *texts):
    promotions = parse_promotions(texts, option="promote")
    change = add_promotions({}, promotions, option="promote", may_end=True)
    return alter_table_config(table.open(), change, clock=SystemClock())


def test_nobody_sees_a_column_before_it_is_complete(lake):
    events = lake.create_table("events", sort=["n"])
    events.append(ROWS)
    lake.create_table("copies", view_of="events", view_query="select * from _rows")
    promote(events, "p.plan", "p.price:DOUBLE as price", "c.page.url as url")
    events.append([{"n": 4, "p": {"plan": "max"}}])
    before = events.snapshot()
    assert list(before.schema) == ["n", "p", "c"]
    assert events.query("select * from events").columns == ["n", "p", "c"]
    with pytest.raises(InvalidRequest, match="p__plan"):
        events.delete("p__plan = 'free'")
    with pytest.raises(InvalidRequest, match="p__plan"):
        events.rewrite("select n, p, c from _rows where p__plan = 'pro'")
    events.delete("n = 2")
    assert events.snapshot().schema["p__plan"] == "VARCHAR", "it wrote the only file anew that lacked it"
    promote(events, "p.price")
    events.rewrite("select * from _rows")
    assert "p__price" in events.snapshot().schema
    expected = [(1, "pro", 2.5, "/a"), (3, None, None, None), (4, "max", None, None)]
    assert rows_of(lake, BY_COLUMN.replace("p__price", "price")) == rows_of(lake, BY_TEXT) == expected
    assert lake.client.snapshot("events", as_of=before.last_commit_ms).schema == before.schema
    lake.work(until_idle=True)
    assert rows_of(lake, "select n from copies") == [(4,)]


def test_a_column_that_is_filled_no_more_is_null_in_rows_that_come(lake):
    events = lake.create_table("events", promote=["p.plan", "p.price:DOUBLE"])
    events.append(ROWS[:1])
    promote(events, "p.plan:off")
    events.append(ROWS[1:2])
    events.merge(full=True)
    assert rows_of(lake, "select n, p__plan, p__price from events order by n") == [(1, "pro", 2.5), (2, None, None)]
    events.rewrite("select * from _rows")
    assert rows_of(lake, "select n, p__plan, p__price from events order by n") == [(1, None, 2.5), (2, None, None)]
    with pytest.raises(InvalidRequest, match="'p__plan' was promoted, and nothing fills it any more"):
        events.append([{"n": 3, "p__plan": "own"}])


def test_imported_files_are_filled(folder, run_icedb, tmp_path):
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, 2], "p": ['{"plan": "pro"}', None]}), source)
    run_icedb("table", "create", "events")
    run_icedb("import", "events", str(source), "--local")
    run_icedb("table", "alter", "events", "--promote", "p.plan")
    run_icedb("merge", "events", "--local")
    found = json.loads(run_icedb("query", "select n, p__plan from events order by n", "-o", "json"))["rows"]
    assert found == [{"n": 1, "p__plan": "pro"}, {"n": 2, "p__plan": None}]


def test_an_engine_of_iceberg_is_shown_complete_columns_alone(lake):
    events = lake.create_table("events")
    events.append(ROWS)
    promote(events, *PATHS)
    events.append(ROWS)

    def published():
        metadata = json.loads(Path(events.publish().removeprefix("file://")).read_bytes())
        return [field["name"] for field in metadata["schemas"][-1]["fields"]]

    assert published() == ["n", "p", "c"]
    events.merge()
    assert published() == ["n", "p", "c", "p__plan", "p__price", "url"]
