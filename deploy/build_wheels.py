"""Build the wheels of what is checked out: ``make wheels`` writes them to ``dist``.

To install them:  ``pip install --find-links dist icedb``
"""

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("proto", "libs/*", "services/*")
"""What is installed by users: nothing of the local stack, its demo and chaos, or of tests."""


def build_wheels(sources: Path, out: Path) -> list[Path]:
    """Build every package below a folder, and return the wheels. Older wheels in ``out`` are removed first."""
    uv = Path(sys.executable).with_name("uv")
    out.mkdir(parents=True, exist_ok=True)
    for wheel in out.glob("*.whl"):
        wheel.unlink()

    def build(package: Path) -> None:
        # What setuptools gathered for an earlier build it takes along, also modules that are gone from the sources.
        shutil.rmtree(package / "build", ignore_errors=True)
        command = [uv, "build", "--quiet", "--wheel", "--no-create-gitignore", "--out-dir", out.resolve(), package]
        try:
            subprocess.run([str(word) for word in command], check=True)
        finally:
            shutil.rmtree(package / "build", ignore_errors=True)

    with ThreadPoolExecutor(os.cpu_count()) as builders:
        list(builders.map(build, sorted(each for pattern in PACKAGES for each in sources.glob(pattern))))
    return sorted(out.glob("*.whl"))


def main() -> int:
    """Build what is checked out."""
    parser = argparse.ArgumentParser(description="Build the wheels of what is checked out.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder to write them to; default: dist")
    wheels = build_wheels(ROOT, parser.parse_args().out)
    sys.stdout.write("".join(f"{wheel}\n" for wheel in wheels))
    return 0


if __name__ == "__main__":
    sys.exit(main())
