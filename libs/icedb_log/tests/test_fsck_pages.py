"""``icedb fsck --pages``: what a reader of pages says of live data files becomes findings, if they are still live."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from icedb_log.parquet.pages import PageLook
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.repair.fsck_findings import FsckReport
from icedb_log.store.object_store import ObjectInfo
from icedb_sim.tables.fsck_tables import codes, data_file, last_append, small
from icedb_sim.tables.row_footers import RowFooterReader
from icedb_sim.tables.small_table import SmallTable


class FakePages:
    """Says of one file what it is told to, and of the others that they are sound; acts before the first."""

    def __init__(self, path: str = "", act: Callable[[], object] = lambda: None, **look: Any) -> None:
        self.path, self.act, self.look = path, act, look
        self.seen: list[str] = []

    def read_pages(self, infos: Iterable[ObjectInfo]) -> Iterator[PageLook]:
        for info in infos:
            self.seen.append(info.key)
            yield PageLook(info, page_count=2, **(self.look if info.key == self.path else {}))
        self.act()


def check(table: SmallTable, pages: FakePages, **options: Any) -> FsckReport:
    chosen = FsckOptions(footers=RowFooterReader(table.store), pages=pages, fetch_threads=1, **options)
    return fsck_table(table, clock=table.clock, options=chosen)


def test_all_live_files_are_read_and_sound_ones_are_counted() -> None:
    table, pages = small(), FakePages()
    report = check(table, pages)
    assert codes(report) == set()
    assert pages.seen == sorted(marker.path for marker in table.snapshot().live)
    assert report.figures["pages"] == 2 * len(pages.seen)
    sampled = FakePages()
    assert check(table, sampled, sample=1).figures["footers"] == len(sampled.seen) == 1


@pytest.mark.parametrize(
    ("look", "severity", "code"),
    [
        ({"cause": "damaged", "reason": "another checksum"}, "error", "page-damaged"),
        ({"unsummed_count": 2}, "note", "pages-unsummed"),
        ({"cause": "unanswered", "reason": "no answer"}, "warning", "not-checked"),
        ({"cause": "gone", "reason": "gone"}, "error", "dangling"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(look: dict[str, Any], severity: str, code: str) -> None:
    table = small()
    path = data_file(table, last_append(table))
    report = check(table, FakePages(path, **look))
    (found,) = [each for each in report.findings if each.code == code]
    assert (found.severity, found.key) == (severity, path)
    assert look.get("reason", "1 files") in found.message or code == "dangling"
    assert codes(report) == ({code} if severity != "note" else set())


def test_a_file_that_is_merged_meanwhile_is_no_finding() -> None:
    table = small()
    table.append(7, p="b")
    path = data_file(table, last_append(table))
    pages = FakePages(path, act=lambda: table.merge(full=True), cause="damaged", reason="another checksum")
    assert codes(check(table, pages)) == set()


def test_a_file_without_a_footer_is_not_read_again() -> None:
    table, pages = small(), FakePages()
    path = data_file(table, last_append(table))
    table.store.put(path, b"\xff" * len(table.store.get(path).body))
    assert codes(check(table, pages)) == {"footer-unreadable"}
    assert path not in pages.seen
