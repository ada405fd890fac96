"""Every relative link of the documentation points to a file, and to a heading, that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "docs").rglob("*.md")})
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")
PATH = re.compile(r"`((?:libs|services|sim|deploy|tests|bench|proto)/[\w./-]+\.\w+)`")
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


def test_what_is_not_there_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Some heading\n[a](page.md) [b](none.md) [c](#some-heading) [d](page.md#no) `[e](code.md)` [f](https://x.y)"
    )
    assert list(broken_links(page)) == ["none.md", "page.md#no"]
