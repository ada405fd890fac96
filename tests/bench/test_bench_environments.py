"""Two environments: nothing of the peers' is needed by ours, and nothing of ours by the peers."""

import ast
import sys
from pathlib import Path

import pytest

from bench import processes, serve

BENCH = Path(serve.__file__).parent
PEERS_ONLY = {"deltalake", "pyiceberg"}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            if node.module == "bench":
                yield from (f"bench.{alias.name}" for alias in node.names)


def reached(path, seen):
    """Everything that a module imports, and what modules of the benchmark among it import."""
    for name in imported(path):
        if name in seen:
            continue
        seen.add(name)
        file = BENCH.parent / f"{name.replace('.', '/')}.py"
        if name.startswith("bench.") and file.exists():
            reached(file, seen)
    return seen


@pytest.mark.parametrize("path", sorted((BENCH / "peers").glob("*.py")), ids=lambda path: path.stem)
def test_peers_need_nothing_of_ours(path):
    assert {name for name in reached(path, set()) if name.startswith("icedb")} == set()


def test_the_pipe_needs_the_standard_library_only():
    found = {name.partition(".")[0] for name in reached(BENCH / "serve.py", set())}
    assert found - {"bench"} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "path", [path for path in sorted(BENCH.rglob("*.py")) if path.parent.name != "peers"], ids=lambda path: path.stem
)
def test_ours_imports_no_peer(path):
    found = set(imported(path))
    assert {name for name in found if name.partition(".")[0] in PEERS_ONLY or name.startswith("bench.peers")} == set()


def test_a_peer_is_made_of_its_name_with_peers_among_its_arguments():
    inner = serve.Peer("fractions:Fraction", 1, 2)
    peer = serve.Peer("types:SimpleNamespace", name="outer", half=inner)
    assert peer.name == "outer"
    assert inner.name == "Fraction"
    assert float(serve.made(peer).half) == 0.5
    assert serve.made(7) == 7


def test_a_process_answers_says_what_failed_and_lives_on(monkeypatch):
    monkeypatch.setattr(processes, "PEERS_PYTHON", Path(sys.executable))
    remote = processes.Remote(is_peer=True)
    try:
        assert remote.take(serve.Peer("collections:Counter", "abracadabra")) == ""
        with pytest.raises(RuntimeError, match="elements_of: AttributeError"):
            remote.ask("elements_of")
        assert remote.ask("total") == 11
    finally:
        remote.close()
    with pytest.raises(RuntimeError, match="died"):
        remote.ask("total")


def test_missing_peers_name_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "PEERS_PYTHON", tmp_path / "python")
    with pytest.raises(RuntimeError, match="make peers"):
        processes.Remote(is_peer=True)
