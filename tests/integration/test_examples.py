"""The examples run as their READMEs say, each in a folder of its own, and print what stands there."""

import doctest
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from processes import LIMIT_S, free_port, service_env

EXAMPLES = Path(__file__).parents[2] / "examples"
FORGIVING = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def read_session(page):
    """Return the commands of a page's console blocks, each with what it prints; ``...`` stands for anything."""
    session = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
        for text in block.split("$ ")[1:] if block.startswith("$ ") else ():
            command, _, printed = text.partition("\n")
            session.append((command, printed))
    return session


def run_session(session, folder):
    """Run commands in one shell; return what each printed and its exit code."""
    env = service_env(
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        ICEDB_REDIS_URL="redis://127.0.0.1:9/0",  # nobody there
        ICEDB_FRONTEND_HTTP_PORT=free_port(),
        ICEDB_FRONTEND_GRPC_PORT=0,
    )
    script = "".join(f"{command}\nprintf '\\036%s\\036' $?\n" for command, _ in session)
    shell = subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, _ = shell.communicate(timeout=2 * LIMIT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)  # what a page starts in the background and did not stop
    parts = said.split("\036")
    return list(zip(parts[::2], parts[1::2], strict=False))


PAGES = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))
LONG = {"github_archive", "iot"}


@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in LONG else name for name in PAGES]
)
def test_an_example_prints_what_its_page_says(name, tmp_path):
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder)
    session = read_session(folder / "README.md")
    answers = run_session(session, folder)
    assert len(session) >= 4
    for (command, expected), (printed, code) in zip(session, answers, strict=True):
        assert code == "0", (command, printed)
        assert doctest.OutputChecker().check_output(expected, printed, FORGIVING), f"$ {command}\n{printed}"


@pytest.mark.timeout(3 * LIMIT_S)
def test_the_notebook_runs_and_is_kept_without_outputs(tmp_path):
    source = EXAMPLES / "notebook" / "explore.ipynb"
    assert not [cell for cell in json.loads(source.read_text())["cells"] if cell.get("outputs")]
    copy = tmp_path / source.name
    shutil.copy(source, copy)
    executor = Path(sys.executable).parent / "jupyter-execute"
    subprocess.run([executor, "--inplace", copy], env=service_env(), check=True, capture_output=True, cwd=tmp_path)
    outputs = [output for cell in json.loads(copy.read_text())["cells"] for output in cell.get("outputs", ())]
    printed = "".join("".join(output.get("text", "")) for output in outputs)
    assert "18958 rows in 54 files after 28 commits" in printed
    assert "54 files before, 14 after; the same rows: True" in printed
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert any("│ view    │ 13179 │" in "".join(output.get("data", {}).get("text/plain", "")) for output in outputs)


def test_every_example_is_on_the_first_page():
    assert set(re.findall(r"\]\((\w+)/README\.md\)", (EXAMPLES / "README.md").read_text())) == set(PAGES)
