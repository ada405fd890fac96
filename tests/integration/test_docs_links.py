"""Every relative link of the documentation points to a file, and to a heading, that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "docs").rglob("*.md")})
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")
PATH = re.compile(r"`((?:libs|services|sim|deploy|tests|bench|proto)/[\w./-]+\.\w+)`")
STOP = re.compile(r"^(\d+)\. `([\w/.]+)` `([\w.]+)`", re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def broken_links(page):
    for path, anchor in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        target = page.parent / path if path else page
        if not target.exists():
            yield path
        elif anchor:
            headings = HEADING.findall(target.read_text(encoding="utf-8"))
            if anchor not in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}:
                yield f"{path}#{anchor}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "node_modules" not in page.parts], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_point_to_what_is_there(page):
    assert list(broken_links(page)) == []


def test_paths_that_pages_name_are_there():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {path for page in pages for path in re.findall(PATH, page.read_text(encoding="utf-8"))}
    assert len(named) > 50
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_the_tour_of_one_row_is_true():
    page = (ROOT / "docs" / "internals" / "one-row.md").read_text(encoding="utf-8")
    stops = [STOP.findall(part) for part in page.split("## Later")]
    assert [int(number) for part in stops for number, _, _ in part] == list(range(1, len(stops[0] + stops[1]) + 1))
    for _, file, function in stops[0] + stops[1]:
        (path,) = (*ROOT.glob(f"libs/*/src/{file}"), *ROOT.glob(f"services/*/src/{file}"))
        for name in function.split("."):
            assert re.search(rf"^ *(async def|def|class) {name}\b", path.read_text(), re.MULTILINE), (file, function)
    way, later = ({file for _, file, _ in part} for part in stops)
    assert f"**{len(stops[0])} stops in {len(way)} files**" in page
    assert f"{len(stops[1])} stops in {len(later - way)} files more" in page


def test_what_is_not_there_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Some heading\n[a](page.md) [b](none.md) [c](#some-heading) [d](page.md#no) `[e](code.md)` [f](https://x.y)"
    )
    assert list(broken_links(page)) == ["none.md", "page.md#no"]
