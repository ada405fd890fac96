"""The Go client of docs/recipes/go, generated from openapi.json and compiled without the network, against a front end."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from icedb_engine.spark.spark_session import find_java
from icedb_log.clock import parse_uuid7_ms
from icedb_sim.rigs.frontend_rig import start_rig
from processes import service_env

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "recipes" / "typescript.md"
LIMIT_S = 900

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2 * LIMIT_S)]


@pytest.fixture(scope="module")
def sender(tmp_path_factory):
    """Do what the page says, in an empty folder; return the path of the program."""
    bin_dir = Path(sys.executable).parent
    assert (bin_dir / "go").exists(), "no Go: `make engines` installs it"
    folder = tmp_path_factory.mktemp("go")
    shutil.copy(ROOT / "docs" / "schemas" / "openapi.json", folder)
    (folder / "client" / "sender").mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "recipes" / "go" / "sender.go", folder / "client" / "sender")
    env = service_env(
        PATH=os.pathsep.join([str(bin_dir), str(find_java().path / "bin"), os.environ["PATH"]]),
        GOPROXY="off", GOFLAGS="-mod=mod", GOCACHE=str(folder / "cache"), GOPATH=str(folder / "path"),
    )  # fmt: skip
    (block,) = re.findall(r"```\n(pip install openapi-generator-cli\n.*?)```", PAGE.read_text(), re.DOTALL)
    commands = block.replace("\\\n", " ").splitlines()[1:]
    assert [shlex.split(each)[0] for each in commands] == ["openapi-generator-cli", "sed", "rm"]
    for command in (*commands, "cd client && go vet ./sender && go build -o ../send ./sender"):
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return folder / "send"


def test_rows_arrive_and_what_is_wrong_is_said(sender, tmp_path):
    rig = start_rig(tmp_path / "store")
    try:
        address = f"http://127.0.0.1:{rig.frontend.port}"

        def send(*arguments):
            return subprocess.run(
                [sender, address, *arguments],
                env=service_env(),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        sent = send("events", '{"n": 1}', '{"n": 2}')
        assert sent.returncode == 0, sent.stderr
        parse_uuid7_ms(sent.stdout.strip())
        assert rig.staged() == {f"{sent.stdout.strip()}.json": b'[{"n":1},{"n":2}]\n'}
        refused = send("nope", '{"n": 1}')
        assert (refused.returncode, refused.stderr[:4]) == (1, "404 ")
    finally:
        rig.frontend.stop()
