"""Builds the documentation as a site: run ``make docs-site``, then ``python3 -m http.server -d site``.

Pages keep their places: what git has of them is gathered into ``build/docs`` as it lies in the repository, so that a link
that holds in the repository holds on the site. Pages of reference are made here, from the code, and stand nowhere else.
"""  # noqa: INP001 - a script

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import icedb
import icedb_client
from contracts import render_grpc_page, render_http_page

ROOT: Final = Path(__file__).resolve().parents[1]
GATHERED: Final = ROOT / "build" / "docs"
PAGES: Final = (
    "*.md",
    "docs/*.svg",
    "docs/*.css",
    "docs/*.png",
    "docs/*.json",
    "docs/recipes/node/*",
    "docs/recipes/go/*",
    "docs/recipes/kafka/*",
    "docs/recipes/typescript/*",
    "proto/*.proto",
    "examples/*",
    ":!tests/*",
    ":!libs/*",
)
PYTHON: Final = """# Python

What `icedb` and `icedb_client` export. How to use them: [in your own process](../embedded.md), [the client](../python-client.md).

"""


def render_python_page() -> str:
    """Return the page of the Python packages: mkdocstrings fills it from docstrings."""
    names = [f"{package.__name__}.{name}" for package in (icedb, icedb_client) for name in package.__all__]
    return PYTHON + "\n\n".join(f"::: {name}" for name in names) + "\n"


def gather(folder: Path) -> None:
    """Copy what git has of pages into an empty folder, and write the pages of reference."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PAGES],  # noqa: S607 - the one of the PATH
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    reference = folder / "docs" / "reference"
    reference.mkdir()
    (reference / "grpc.md").write_text(render_grpc_page(), encoding="utf-8")
    (reference / "http.md").write_text(render_http_page(), encoding="utf-8")
    (reference / "python.md").write_text(render_python_page(), encoding="utf-8")


def main() -> int:
    """Gather, and build strictly: a link that leads nowhere is an error."""
    if sys.version_info < (3, 11, 5):
        sys.stderr.write(
            "Zensical, which builds the site, needs Python 3.11.5: make clean, make docs-site PYTHON=python3.12\n"
        )
        return 2
    shutil.rmtree(GATHERED, ignore_errors=True)
    GATHERED.mkdir(parents=True)
    gather(GATHERED)
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
