"""The documentation as a site: it builds strictly, every link leads somewhere, and a browser asks nobody else."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
LOADS = {"script", "link", "img", "iframe", "source"}
NOT_LOADED = {"canonical", "next", "prev"}


class Links(HTMLParser):
    """Addresses of a page: where it leads, and what a browser loads for it."""

    def __init__(self, text):
        super().__init__()
        self.led_to, self.loaded = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        fields = dict(attributes)
        address = fields.get("href") or fields.get("src")
        if address and tag in LOADS and fields.get("rel") not in NOT_LOADED:
            self.loaded.add(address)
        elif address:
            self.led_to.add(address)


def resolve(page, address):
    """Return the file of an address on the site; ``None`` where it leads elsewhere."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return target / "index.html" if target.is_dir() else target


@pytest.mark.skipif(sys.version_info < (3, 11, 5), reason="Zensical needs Python 3.11.5")
def test_the_site_is_built_strictly_and_every_page_is_reached():
    done = subprocess.run([sys.executable, "docs/build_site.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    waiting, reached, broken = [SITE / "index.html"], set(), []
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        links = Links(page.read_text(encoding="utf-8"))
        assert [each for each in links.loaded if urlsplit(each).netloc] == [], page
        for address in links.led_to | links.loaded:
            target = resolve(page, address)
            if target is None:
                continue
            if not target.exists():
                broken.append((str(page.relative_to(SITE)), address))
            elif target.suffix == ".html":
                waiting.append(target)
    assert broken == []
    pages = {path for path in SITE.rglob("*.html") if path.name != "404.html"}
    assert {str(path.relative_to(SITE)) for path in pages - reached} == set()
    assert len(reached) > 70
