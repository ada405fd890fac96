"""The text of objects and arrays says what was sent, to the last digit, whichever reader takes it."""

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_engine.reading import frame
from icedb_engine.reading.frame import UnitSections
from icedb_sim.tables.profiles import SHARED_FIXTURES

NUMBERS = st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?\Z")
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).flatmap(
    lambda text: st.sampled_from([json.dumps(text), json.dumps(text, ensure_ascii=False), '"\\/\\u0041"'])
)
SPACES = st.sampled_from(["", "", " ", "\t", " \r "])


def joined(opening, parts, closing):
    return st.tuples(SPACES, parts, SPACES).map(
        lambda found: opening + found[0] + f"{found[2]},{found[0]}".join(found[1]) + found[2] + closing
    )


NESTED = st.recursive(
    st.one_of(NUMBERS, STRINGS, st.sampled_from(["true", "false", "null"])),
    lambda inner: st.one_of(
        joined("[", st.lists(inner, max_size=4), "]"),
        joined(
            "{",
            st.lists(
                st.tuples(STRINGS, SPACES, inner).map(lambda found: f"{found[0]}{found[1]}:{found[1]}{found[2]}"),
                max_size=4,
            ),
            "}",
        ),
    ),
    max_leaves=12,
).filter(lambda text: text[0] in "[{")


def parse(text: str):
    """Read JSON with all of its keys, also those that are there twice, and every digit of its numbers."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal, object_pairs_hook=tuple)


def ndjson(texts: list[str], more: str = "") -> tuple[bytes, str]:
    return "".join(f'{{"i":{i}{more},"o": {text} }}\n' for i, text in enumerate(texts)).encode(), "ndjson"


def document(texts: list[str], more: str = "") -> tuple[bytes, str]:
    return (
        "[" + ",\n".join(f'{{"i":{i}{more},\n"o": {text} }}' for i, text in enumerate(texts)) + "]"
    ).encode(), "json"


@pytest.fixture
def taken(monkeypatch):
    """Return the list of how many batches the fast reader took, each time."""
    counts = []
    read_fast = UnitSections.read_fast

    def spy(self):
        read_fast(self)
        counts.append(len(self.fast))

    monkeypatch.setattr(UnitSections, "read_fast", spy)
    return counts


@pytest.mark.parametrize(
    ("body", "sample_lines"),
    [
        (ndjson, 0),
        (ndjson, 10**9),
        (lambda texts: ndjson(texts, more=',"n":NaN'), 10**9),
        (document, 10**9),
        (lambda texts: document(texts, more=',"n":NaN'), 10**9),
    ],
    ids=["fast", "exact", "token by token", "document", "document token by token"],
)
@given(texts=st.lists(NESTED, min_size=1, max_size=6))
@settings(max_examples=20, deadline=None, suppress_health_check=SHARED_FIXTURES)
def test_nested_text_says_what_was_sent(make_table, monkeypatch, body, sample_lines, texts):
    monkeypatch.setattr(frame, "SAMPLE_LINES", sample_lines)
    table = make_table(sort=("i",))
    sent, staging_format = body(texts)
    result = table.flush(table.stage(body=sent, staging_format=staging_format))
    assert not result.rejected
    assert [parse(row["o"]) for row in table.rows(*result.files)] == list(map(parse, texts))


@pytest.mark.parametrize("staging_format", ["ndjson", "json"])
@pytest.mark.parametrize("sample_lines", [0, 10**9])
def test_numbers_keep_their_digits_and_text_can_be_searched_for(
    make_table, monkeypatch, taken, staging_format, sample_lines
):
    monkeypatch.setattr(frame, "SAMPLE_LINES", sample_lines)
    table = make_table()
    body = b'{"o": {"v" : 1234567890123456.123456789, "w": [1e-400, 1.50, -0], "x": "M\\u00fc\\ud83d\\ude00\\/\\n\\u0000"}}\n'
    flushed = [table.flush(table.stage(body=body, staging_format=staging_format)).files for _ in range(2)]
    assert taken == [1 if sample_lines == 0 else 0] * 2
    expected = {"o": '{"v":1234567890123456.123456789,"w":[1e-400,1.50,-0],"x":"Mü😀/\\n\\u0000"}'}
    assert [table.rows(*files) for files in flushed] == [[expected], [expected]]
    assert table.rows(*table.merge(*flushed[0], *flushed[1]).outputs) == [expected, expected]
