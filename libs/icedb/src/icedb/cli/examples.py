"""Examples of the command: one session of commands, each with what it prints, in ``examples.txt`` beside this module.

``docs/commands.py`` runs the session and writes down what is printed; a test runs it again and compares.
"""

from functools import cache
from pathlib import Path
from typing import Final

PATH: Final = Path(__file__).with_name("examples.txt")
PROMPT: Final = "$ "


def read_examples(text: str) -> list[tuple[str, str]]:
    """Return the commands of a session, each with what it prints."""
    parts = f"\n{text}".split(f"\n{PROMPT}")[1:]
    return [(command, printed) for command, _, printed in (each.partition("\n") for each in parts)]


@cache
def _examples() -> list[tuple[str, str]]:
    return read_examples(PATH.read_text())


def examples_of(path: str) -> list[str]:
    """Return the examples of a command, e.g. ``icedb table list``, as a terminal shows them."""
    found = [each for each in _examples() if f"{each[0]} ".startswith(f"{path} ")]
    return [f"{PROMPT}{command}\n{printed}".rstrip() for command, printed in found]
