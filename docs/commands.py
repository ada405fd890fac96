"""Runs the examples of the command and writes what they print: ``docs/commands.md``, and what ``--help`` shows.

The session of ``examples.txt`` runs in a folder of its own, without workers. What differs from run to run (ids, times,
sizes) is masked when two runs are compared: an example changes only if the command prints something else.
"""  # noqa: INP001 - a script

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from icedb.cli.app import GROUPS, load_all, run
from icedb.cli.examples import PATH, PROMPT, read_examples

PAGE: Final = Path(__file__).with_name("commands.md")
SHOWN_FOLDER: Final = "/srv"
ROWS: Final = (
    ("2026-01-02T08:00:00Z", "view", "ann", None),
    ("2026-01-02T08:01:00Z", "buy", "ann", 9.5),
    ("2026-01-03T09:00:00Z", "view", "bob", None),
)
ENVIRONMENT: Final = {"ICEDB_REDIS_URL": "redis://127.0.0.1:1/0", "LOGNAME": "ann", "COLUMNS": "200"}
VALUES: Final = (
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",  # ids of batches, erasures, holds
    r"\d{10}-[0-9a-f]{32}-",  # versions of publications
    r"[0-9a-f]{32}",
    r"\b\d{13,20}(?=\b|_)",
    r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d+Z?",
)
"""Ids and times: what one example prints, another one may print, too."""
_VALUE: Final = re.compile("|".join(VALUES))
MASKS: Final = (
    *VALUES,
    r"[\d,.]+ (?:B|KiB|MiB|GiB)\b",
    r"(?:\d+ (?:ms|s|min)\b ?)+",
    r"(?m)^(?:ok|warn|fail) +(?:java|versions|scratch|settings) .*$",  # of this machine
    r"\d+ ok, \d+ warn, \d+ fail",
    r"[ -]{2,}",  # columns are as wide as what stands in them
)
HEAD: Final = """# Every command

<!-- Written by docs/commands.py, which runs the examples. Edit the code or `examples.txt`, then run `make docs`. -->

What `icedb COMMAND --help` prints. [The command](cli.md) says what belongs together.
"""


def run_session(commands: list[str]) -> str:
    """Run commands one after the other in an empty folder, and return the session with what each printed."""
    with TemporaryDirectory() as folder, _alone(Path(folder)):
        Path("clicks.ndjson").write_text("".join(f"{_to_line(*row)}\n" for row in ROWS))
        Path("more.ndjson").write_text(f"{_to_line('2026-01-03T10:00:00Z', 'buy', 'eve', 3.0)}\n")
        Path("bad.ndjson").write_text('{"ts":"soon","event":"view","user":"bob"}\n')
        parts = [f"{PROMPT}{command}\n{_run(command)}" for command in commands]
        return "".join(parts).replace(str(Path(folder).resolve()), SHOWN_FOLDER).replace(folder, SHOWN_FOLDER)


def _to_line(ts: str, event: str, user: str, price: float | None) -> str:
    return f'{{"ts":"{ts}","event":"{event}","user":"{user}","price":{"null" if price is None else price}}}'


def _run(command: str) -> str:
    printed = TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(printed), redirect_stderr(printed):
        run(shlex.split(command)[1:])
    return "".join(f"{line.rstrip()}\n" for line in printed.buffer.getvalue().decode().splitlines())  # type: ignore[attr-defined]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Work in a folder, with the settings of the session and no other ones."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(("ICEDB_", "AWS_")):
            del os.environ[name]
    os.environ |= {**ENVIRONMENT, "ICEDB_STORE": f"file://{folder.resolve()}/warehouse"}
    try:
        with chdir(folder):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def mask(text: str) -> str:
    """Return a session without what differs from run to run."""
    for pattern in MASKS:
        text = re.sub(pattern, "…", text)
    return text


def find_examples() -> str:
    """Return the session as it has to stand in the file: each example as it stands, unless it prints something else.

    An id or a time in what is printed anew keeps the value that it has in the other examples.
    """
    before = read_examples(PATH.read_text().removesuffix("\n"))
    after = read_examples(run_session([command for command, _ in before]).removesuffix("\n"))
    pairs = [(old, new, mask(old) == mask(new)) for (_, old), (_, new) in zip(before, after, strict=True)]
    kept = {
        value: known
        for old, new, is_same in pairs
        if is_same
        for value, known in zip(_VALUE.findall(new), _VALUE.findall(old), strict=False)
    }
    shown = [
        old if is_same else _VALUE.sub(lambda each: kept.get(each[0], each[0]), new) for old, new, is_same in pairs
    ]
    return "".join(
        f"{PROMPT}{command}\n{printed}{chr(10) if printed else ''}"
        for (command, _), printed in zip(before, shown, strict=True)
    )


def render_page() -> str:
    """Return docs/commands.md."""
    columns, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "100"
    try:
        parts = [HEAD, _fence(_run("icedb --help"))]
        root: Any = load_all()
        for group, names in GROUPS.items():
            parts.append(f"## {group.capitalize()}\n")
            for name in names:
                inner = getattr(root.commands[name], "commands", None)
                paths = [f"icedb {name}"] if inner is None else [f"icedb {name} {each}" for each in inner]
                parts += [f"### {path}\n\n{_fence(_run(f'{path} --help'))}" for path in paths]
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return "\n".join(parts)


def _fence(text: str) -> str:
    return f"```text\n{text}```\n"


def main() -> None:
    """Write the examples, then the page, which has them."""
    PATH.write_text(find_examples())
    PAGE.write_text(render_page())


if __name__ == "__main__":
    sys.exit(main())
