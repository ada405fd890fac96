"""Promoted paths of webhooks' events: each column is what DuckDB takes out of the text that was sent."""

import json
from itertools import count

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from icedb import connect
from icedb_ingest.frontend.webhooks import parse_payload, read_events

PATHS = ("properties.plan", "properties.revenue:DOUBLE as revenue", "context.page.url as page_url", "context.page")
SCALARS = st.one_of(
    st.sampled_from(["1.50", "-0", "1e-7", "1e400", "12345678901234567.89", "null", "true", '"\\u00e9"', '"1.5"']),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5).map(json.dumps),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(items) + "]"),
        st.lists(st.tuples(st.sampled_from(["url", "plan", "größe", 'say "hi"']), inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in pairs) + "}"
        ),
    ),
    max_leaves=6,
)
TABLES = count()


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return connect(tmp_path_factory.mktemp("lake"))


@given(st.lists(st.tuples(VALUES, SCALARS, VALUES), min_size=1, max_size=8), st.booleans())
@example([('"a"', "1", '{"url":"/"}'), ("1", '"?"', '{"url":1e-7}'), ("null", "{}", '{"url":{"url":[]}}')], True)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_column_is_what_duckdb_takes_out_of_the_text(lake, events, is_batch):
    texts = [
        f'{{"type":"track","userId":"u","properties":{{"plan": {plan}, "revenue":{revenue}}},"context":{{"page":{page}}}}}'
        for plan, revenue, page in events
    ]
    body = f"[{', '.join(texts)}]" if is_batch else texts[0]
    found = read_events(parse_payload(body.encode()), call="", received_at="2026-01-02T03:04:05Z", max_bytes=1 << 20)
    assert found.count == (len(texts) if is_batch else 1) and not found.reasons
    name = f"t{next(TABLES)}"
    lake.create_table(name, promote=PATHS).append(found.lines)
    query = f"""SELECT properties__plan, properties->>'$.plan', page_url, context->>'$.page.url',
        context__page, context->>'$.page', revenue, properties->'$.revenue' FROM {name}"""
    rows = lake.query(query).fetchall()
    assert len(rows) == found.count
    for plan, wanted_plan, url, wanted_url, page, wanted_page, revenue, number in rows:
        assert (plan, url, page) == (wanted_plan, wanted_url, wanted_page)
        is_number = number is not None and number not in ("true", "null") and number[0] not in '"[{'
        assert (revenue is not None) == (is_number and number != "1e400")
