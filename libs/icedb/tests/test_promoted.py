"""Promoted paths as users have them: by Python and by the command, from the first row through merges and changes."""

import json

import pyarrow as pa
import pytest
from icedb import connect
from icedb_log.errors import InvalidRequest

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
    return lake.query(sql).relation.fetchall()


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
    assert "promoted cannot be changed" in run_icedb("table", "alter", "events", "--promote", "p.x", code=2)
    assert "--promote" not in run_icedb("table", "alter", "--help")
