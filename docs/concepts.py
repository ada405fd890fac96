"""Counts what a person has to hold in mind of this project: run ``make concepts``.

A change that adds one of these sees its figure move. Everything is counted from the sources, and nothing is written.
"""  # noqa: INP001 - a script

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
RULE: Final = re.compile(r"^- \*\*[A-Z]\d+\*\* ", re.MULTILINE)
KIND: Final = re.compile(r"^\| `_[^|`]*` \|", re.MULTILINE)
"""A line of the table of objects in docs/protocol.md: it begins with the object's key below its table."""
_NO_CODE: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)


def count_rules(page: str) -> int:
    """Return how many rules the protocol's page has."""
    return len(RULE.findall(page))


def count_kinds(page: str) -> int:
    """Return how many kinds of objects a table has, by the protocol's page."""
    return len(KIND.findall(page))


def count_code_lines(source: str) -> int:
    """Return how many lines have code: no blank line, no comment, no docstring of whatever it describes."""
    tree = ast.parse(source)
    described = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    texts = source.splitlines()
    return sum(1 for line in lines - described if texts[line - 1].strip())


def read_room_imports(package: Path) -> dict[str, set[str]]:
    """Return for each sub-package of a package which of its other sub-packages it imports, anywhere in its code."""
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").is_file()}
    prefix = f"{package.name}."
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for room in rooms:
        for path in (package / room).rglob("*.py"):
            for name in _imported_names(ast.parse(path.read_text())):
                other = name.removeprefix(prefix).partition(".")[0]
                if name.startswith(prefix) and other in rooms and other != room:
                    found[room].add(other)
    return found


def read_module_imports(packages: Iterable[Path]) -> dict[str, set[str]]:
    """Return for each module of some packages which other modules of them it imports, anywhere in its code."""
    modules = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for package in packages
        for path in package.rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        imported = _imported_names(ast.parse(path.read_text()))
        names = {name if name in modules else name.rpartition(".")[0] for name in imported}
        found[module] = {name for name in names if name in modules and name != module}
    return found


def _imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def find_circles(imports: Mapping[str, Iterable[str]]) -> list[frozenset[str]]:
    """Return the strongly connected components of more than one: each can be reached from each other of it."""

    def reach(room: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(imports.get(room, ()))
        while waiting:
            each = waiting.pop()
            if each not in seen:
                seen.add(each)
                waiting.extend(imports.get(each, ()))
        return seen

    reached = {room: reach(room) for room in imports}
    circles = {
        frozenset(other for other in reached[room] if room in reached[other])
        for room in imports
        if room in reached[room]
    }
    return sorted((circle for circle in circles if len(circle) > 1), key=sorted)


def count_commands(command: Any, *, is_root: bool = True) -> tuple[int, int]:
    """Return how many commands a command line has, and how many options these have in all; ``--help`` is none."""
    options = sum(1 for each in command.params if each.param_type_name == "option" and each.name != "help")
    inner = getattr(command, "commands", None)
    if inner is None:
        return 1, options
    counts = [count_commands(each, is_root=False) for each in inner.values()]
    own = 1 if command.invoke_without_command and not is_root else 0
    return own + sum(count for count, _ in counts), options + sum(count for _, count in counts)


def count_all() -> dict[str, str]:
    """Return each figure with its name."""
    from icedb.cli.app import load_all  # noqa: PLC0415 - the rest of this module counts without the command

    page = (ROOT / "docs" / "protocol.md").read_text()
    promises = (ROOT / "docs" / "internals" / "promises.md").read_text()
    commands, options = count_commands(load_all())
    packages = [path.parent for folder in ("libs", "services") for path in (ROOT / folder).glob("*/src/*/__init__.py")]
    modules = find_circles(read_module_imports([*packages, ROOT / "sim" / "src" / "icedb_sim"]))
    names = "; ".join(" ".join(sorted(circle)) for circle in modules)
    sources = [path for folder in ("libs", "services") for path in (ROOT / folder).glob("*/src/**/*.py")]
    circles = find_circles(read_room_imports(ROOT / "libs" / "icedb_log" / "src" / "icedb_log"))
    rooms = "; ".join(" ".join(sorted(circle)) for circle in circles)
    compat = ROOT / "tests" / "compat"
    return {
        "protocol rules": f"{count_rules(page)}",
        "rules of one party": f"{count_rules(promises)}",
        "kinds of objects": f"{count_kinds(page)}",
        "circles between rooms of icedb_log": f"{len(circles)}{f'  ({rooms})' if rooms else ''}",
        "circles between modules": f"{len(modules)}{f'  ({names})' if names else ''}",
        "commands": f"{commands}",
        "options": f"{options}",
        "files in tests/compat": f"{sum(1 for each in compat.rglob('*') if each.is_file() and each.suffix != '.pyc')}",
        "lines of code": f"{sum(count_code_lines(path.read_text()) for path in sources):,}",
    }


if __name__ == "__main__":
    sys.stdout.writelines(f"{name:36}{figure}\n" for name, figure in count_all().items())
