"""Makes the tables "rule, who writes, enforced in, tested by" of the pages of rules from the citations in the code.

A citation is a rule's id in a comment or string of product code (``J2``, ``F1 to F3``). Those in the docstring of a
module count only where hardly any other code cites the rule. A rule is tested by test functions that carry its id in
their name, by test files whose docstring cites it, and by the simulation, which switches it off.
"""  # noqa: INP001 - a module beside the pages that it writes

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = tuple(Path(__file__).parent / name for name in ("protocol.md", "internals/promises.md"))
"""The rules that parties agree on, and those that each keeps by itself."""
BEGIN, END = "<!-- rules -->", "<!-- end of rules -->"
RULE: Final = re.compile(r"^- \*\*([A-Z]\d+)\*\* ", re.MULTILINE)
CITED: Final = re.compile(r"(?<![\w`.-])([A-Z]\d{1,2})(?: to ([A-Z]\d{1,2}))?(?![\w.-])")
WRITERS: Final = {
    "S": "who commits; who reads folds",
    "W": "who commits",
    "F": "who commits",
    "M": "merger",
    "R": "nobody: who reads",
    "J": "janitor",
    "I": "ingest",
    "N": "ingest",
    "A": "Spark, ingest",
    "V": "ingest",
    "L": "nobody: Spark reads",
    "P": "publisher",
    "E": "merger",
    "T": "CLI, janitor",
    "B": "CLI",
}
"""Who writes what the rules of a group are about."""
TESTS: Final = ("libs/*/tests", "services/*/tests", "tests")
WRITERS_OF_RULE: Final = {
    "F5": "who commits; janitor",
    "J4": "readers, snapshot service, CLI, publisher; janitor",
    "J5": "janitor, CLI",
    "I1": "client, front end",
    "I7": "front end",
    "I8": "front end, ingest, janitor",
    "E1": "CLI, merger, janitor",
    "E2": "CLI, ingest",
    "E5": "janitor; merger looks",
    "P5": "janitor",
    "V3": "CLI, ingest",
    "V4": "janitor",
    "T4": "CLI; whoever begins",
    "T5": "janitor",
}
NOT_A_RULE: Final = re.compile(r"(?<!\()(?<!\d, )(?<!\d to )(?<!\d and )\bS3\b|\bS3(?! to [A-Z])(?![):,]| and [A-Z]\d)")
"""The store S3: without a bracket or another rule before it, or with another word behind it."""
FEW: Final = 2
"""With fewer modules than this, those that cite a rule in their docstring count, too."""
EXPLAINING: Final = frozenset({"errors", "model", "repair/fsck_findings"})
"""Modules that say what a rule is about, and enforce none."""


def rule_ids(page: str) -> list[str]:
    """Return the ids of all rules, in the order of the page."""
    return RULE.findall(page)


def render_table(page: str) -> str:
    """Return the table: one line for each rule."""
    enforced, tested = _enforcing_modules(), _testing_places()
    lines = ["| rule | who writes | enforced in | tested by |", "| --- | --- | --- | --- |"]
    for rule in rule_ids(page):
        writer = WRITERS_OF_RULE.get(rule, WRITERS[rule[0]])
        code, tests = sorted(enforced.get(rule, ())), sorted(tested.get(rule, ()))
        lines.append(f"| {rule} | {writer} | {_cell(code)} | {_cell(tests)} |")
    return "\n".join(lines)


def render_page(path: Path) -> str:
    """Return a page of rules with the table between its marks."""
    page = path.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render_table(page)}\n{END}{after}"


def _cell(names: list[str]) -> str:
    return ", ".join(f"`{name}`" if name != "simulation" else name for name in names)


@cache
def _all_ids() -> frozenset[str]:
    return frozenset(rule for path in PAGES for rule in rule_ids(path.read_text(encoding="utf-8")))


@cache
def _enforcing_modules() -> dict[str, set[str]]:
    ids = _all_ids()
    found: dict[str, set[str]] = {}
    explained: dict[str, set[str]] = {}
    for path in [*ROOT.glob("libs/*/src/**/*.py"), *ROOT.glob("services/*/src/**/*.py")]:
        if (module := _module(path)) not in EXPLAINING:
            inside, docstring = _citations(path.read_text(encoding="utf-8"), ids)
            for rule in inside:
                found.setdefault(rule, set()).add(module)
            for rule in docstring:
                explained.setdefault(rule, set()).add(module)
    for rule, modules in explained.items():
        if len(found.setdefault(rule, set())) < FEW:
            found[rule] |= modules
    return found


@cache
def _testing_places() -> dict[str, set[str]]:
    ids = _all_ids()
    found: dict[str, set[str]] = {}
    for path in [each for base in TESTS for each in ROOT.glob(f"{base}/**/test_*.py")]:
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"def test_(\w+)", text)
        named = {rule.upper() for name in names for rule in re.findall(r"(?:^|_)([a-z]\d{1,2})(?=_)", name)}
        if "CorruptLog" not in text:
            named.discard("S3")  # the name of a store
        _, docstring = _citations(text, ids)
        for rule in (named & ids) | docstring:
            found.setdefault(rule, set()).add(path.stem)
    for path in ROOT.glob("sim/src/icedb_sim/rules/*.py"):
        for rule in set(re.findall(r"\"([A-Z]\d{1,2})\"", path.read_text(encoding="utf-8"))) & ids:
            found.setdefault(rule, set()).add("simulation")
    return found


def _module(path: Path) -> str:
    """Return `commit/fence` for a module of icedb_log, `icedb_merger/tasks` for one of another package."""
    package, *rest = path.relative_to(ROOT).with_suffix("").parts[3:]
    return "/".join(rest) if package == "icedb_log" else "/".join([package, *rest])


@cache
def _citations(text: str, ids: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the rules that comments and strings cite, and those that only the module's docstring cites."""
    if not any(_cited(text, ids)):
        return frozenset(), frozenset()
    docstring = ast.get_docstring(ast.parse(text), clean=False) or ""
    strings = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type in {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    ]
    inside = {rule for string in strings if docstring not in string or not docstring for rule in _cited(string, ids)}
    return frozenset(inside), frozenset(_cited(docstring, ids)) - inside


def _cited(text: str, ids: frozenset[str]) -> Iterator[str]:
    for first, last in CITED.findall(NOT_A_RULE.sub("", text)):
        numbers = range(int(first[1:]), int(last[1:]) + 1) if last and last[0] == first[0] else [int(first[1:])]
        yield from (rule for rule in (f"{first[0]}{number}" for number in numbers) if rule in ids)
