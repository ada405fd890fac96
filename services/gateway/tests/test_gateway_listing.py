"""Pages of one table against the plain definition of a listing, for every prefix, delimiter and page size."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_gateway.list_objects import ListPage, ListRequest, render_list
from icedb_gateway.listing import ListQuery, list_table
from icedb_log.model import FileMarker

FOLDER, DATA = "events/", "wh/events/_data/"
PARTS = st.sampled_from(["d=1", "d=2", "d=10", "u=a", "x", "é", "z-"])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


@dataclass
class Entry:
    name: str
    is_prefix: bool


def markers(rests):
    return tuple(FileMarker(DATA + rest, 1, 1) for rest in sorted(set(rests)))


def expected(rests, prefix, delimiter):
    """The definition: keys that begin with the prefix, those with the delimiter behind it cut there."""
    entries = []
    for key in sorted({FOLDER + rest for rest in rests}):
        if not key.startswith(prefix):
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        name = key[: cut + len(delimiter)] if cut >= 0 else key
        entry = Entry(name, cut >= 0)
        if entry not in entries:
            entries.append(entry)
    return entries


def list_all_pages(live, prefix, delimiter, limit):
    after, found, pages = "", [], 0
    while True:
        page = list_table(live, ListQuery(prefix, delimiter, after, limit), folder=FOLDER, data_prefix=DATA)
        entries = [Entry(file.key, False) for file in page.files] + [Entry(p, True) for p in page.common_prefixes]
        assert len(entries) <= limit
        found += sorted(entries, key=lambda entry: entry.name)
        pages += 1
        if not page.is_truncated:
            return found
        assert page.last > after
        assert page.last == max(entry.name for entry in entries)
        after = page.last
        assert pages < 1000


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PATHS, max_size=12),
    st.sampled_from(
        ["", "e", "events", "events/", "events/d", "events/d=1", "events/d=1/", "events/d=1/u=a", "events/q"]
    ),
    st.sampled_from(["", "/", "=", "d=", "1/", "é"]),
    st.integers(1, 5),
)
def test_pages_joined_are_the_listing(rests, prefix, delimiter, limit):
    if delimiter and delimiter in FOLDER[len(prefix) :]:
        return  # the whole table is one common prefix: decided before a table is read
    assert list_all_pages(markers(rests), prefix, delimiter, limit) == expected(rests, prefix, delimiter)


@given(st.lists(PATHS, max_size=12), PATHS)
def test_start_after_leaves_out_what_is_not_behind_it(rests, after):
    query = ListQuery("", "", FOLDER + after, 1000)
    page = list_table(markers(rests), query, folder=FOLDER, data_prefix=DATA)
    assert [file.key for file in page.files] == sorted(FOLDER + rest for rest in set(rests) if rest > after)


def test_a_page_of_a_large_table_touches_a_few_files():
    class Counting(tuple):
        __slots__ = ()
        looked = 0

        def __getitem__(self, at):
            Counting.looked += 1
            return super().__getitem__(at)

    live = Counting(markers(f"d={day:03}/{file:03}.parquet" for day in range(200) for file in range(100)))
    for query in (
        ListQuery("events/d=100/", "", "", 10),
        ListQuery("events/", "/", "events/d=150/", 10),
        ListQuery("events/", "", "events/d=150/050.parquet", 10),
    ):
        Counting.looked = 0
        page = list_table(live, query, folder=FOLDER, data_prefix=DATA)
        assert len(page.files) + len(page.common_prefixes) == 10
        assert Counting.looked < 400


@pytest.mark.parametrize(("encoding", "shown"), [({}, "a&amp;b/"), ({"encoding-type": "url"}, "a%26b/")])
@pytest.mark.parametrize("is_v2", [True, False])
def test_what_a_client_sent_is_said_again_escaped_once(encoding, shown, is_v2):
    sent = {"start-after": "a&b/", "marker": "a&b/", **encoding}
    asked = ListRequest(ListQuery("a&b/", "a&b/", "", 10), None, is_v2, sent)
    body = render_list("bucket", asked, ListPage()).decode()
    for name in ("Prefix", "Delimiter", "StartAfter" if is_v2 else "Marker"):
        assert f"<{name}>{shown}</{name}>" in body
