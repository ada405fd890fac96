"""docs/concepts.py counts what it says it counts, on examples small enough to count by hand."""

import runpy
from pathlib import Path

import pytest
import typer

CONCEPTS = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "concepts.py"))

PAGE = """\
| key | content |
| --- | --- |
| `_log/<ms>_<id>.jsonl` | log file |
| `_icedb/table.json` | configuration |

| field | of |
| --- | --- |
| `n` | marker |

- **S1** A rule.
- **W12** Another one, which names **S1**.
- no rule
"""

SOURCE = '''\
"""Module docstring,

of three lines."""

# a comment
LIMIT = 3  # 1
"""What it is."""


def add(one, two):  # 2
    """Docstring."""
    text = """3

    4"""
    return (  # 5
        one  # 6
    )  # 7
'''


def test_that_rules_and_kinds_are_counted_from_the_page():
    assert CONCEPTS["count_rules"](PAGE) == 2
    assert CONCEPTS["count_kinds"](PAGE) == 2


def test_that_lines_without_blanks_comments_and_docstrings_are_counted():
    assert CONCEPTS["count_code_lines"](SOURCE) == 7


@pytest.mark.parametrize(
    ("imports", "circles"),
    [
        ({"a": ["b"], "b": ["c"], "c": []}, []),
        ({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}, [{"a", "b", "c"}]),
        ({"a": ["b"], "b": ["a", "c"], "c": ["d"], "d": ["c"]}, [{"a", "b"}, {"c", "d"}]),
    ],
)
def test_that_circles_are_strongly_connected_rooms(imports, circles):
    assert CONCEPTS["find_circles"](imports) == circles


def test_that_rooms_import_each_other_in_whatever_way_it_is_written(tmp_path):
    package = tmp_path / "house"
    for room, text in {
        "one": "from house.two.things import x",
        "two": "def f():\n    import house.three",
        "three": "from house import one, top\nfrom house.three import own\nimport json",
    }.items():
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").write_text("")
        (package / room / "code.py").write_text(text)
    (package / "top.py").write_text("import house.one")
    found = CONCEPTS["read_room_imports"](package)
    assert found == {"one": {"two"}, "two": {"three"}, "three": {"one"}}


def test_that_modules_import_modules_and_a_name_stands_for_its_module(tmp_path):
    for name, text in {
        "house/__init__.py": "",
        "house/door.py": "from house.room.wall import WALL\nimport house.roof",
        "house/roof.py": "def f():\n    from house import door",
        "house/room/__init__.py": "",
        "house/room/wall.py": "import json\nWALL = 1",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = CONCEPTS["read_module_imports"]([tmp_path / "house"])
    assert found["house.door"] == {"house.room.wall", "house.roof"}
    assert CONCEPTS["find_circles"](found) == [{"house.door", "house.roof"}]


def test_that_commands_and_options_are_counted_and_help_is_none():
    app, inner = typer.Typer(add_completion=False), typer.Typer()

    @app.callback()
    def shared(store: str = typer.Option("")):
        """Take an option."""

    @app.command()
    def one(name: str, deep: bool = False, *, take: list[str] = typer.Option([])):
        """Has an argument and two options."""

    @inner.command("list")
    def many():
        """Has none."""

    @inner.command("drop")
    def drop(force: bool = False):
        """Has one."""

    app.add_typer(inner, name="parts")
    assert CONCEPTS["count_commands"](typer.main.get_command(app)) == (3, 4)
