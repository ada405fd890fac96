"""What goes to terminals, logs and process lists: no text of others steers it, and no secret is in it."""

import io
import json
import logging
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import structlog
from icedb.cli.output import VisibleConsole, err, make_visible, out, print_table
from icedb_log.store.s3_options import S3Options
from icedb_service.logs import configure_logging, get_logger
from icedb_service.settings import ServiceSettings
from rich.markup import escape

ROOT = Path(__file__).parents[2]
STEERS = "a\x1b[2J\x1b]0;owned\x07\x9b31m\r\n2026-01-01 [error] fake\u202edoc\x00"
HUSH = ("hush", "hush")
TOKEN = "icedbt_" + "A1b2" * 8


def test_what_others_wrote_cannot_steer_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    path = tmp_path / "out"
    with path.open("w", encoding="utf-8") as file:
        console = VisibleConsole(file=file, force_terminal=True, width=200)
        monkeypatch.setattr("icedb.cli.output.out", console)
        print_table(("name", "reason"), [(STEERS, STEERS)])
        console.print(f"[bold red]error:[/] {escape(STEERS)}", soft_wrap=True)
    text = path.read_text(encoding="utf-8")
    styles = re.compile(r"\x1b\[[0-9;]*m")
    assert styles.search(text), "our own styles stay"
    assert not {each for each in styles.sub("", text) if not each.isprintable()} - {"\n"}
    assert make_visible("a\tb\nc é😀") == "a\tb\nc é😀"


@pytest.fixture(params=["console", "json"])
def write(request, monkeypatch):
    """Return what a call logs, as it stands on standard error."""

    def run(call):
        root, stream = logging.getLogger(), io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        before = root.handlers, root.level
        try:
            configure_logging(ServiceSettings(store="file:///x", log_format=request.param), component="test")
            call()
        finally:
            root.handlers, level = before
            root.setLevel(level)
            logging.captureWarnings(capture=False)
            structlog.reset_defaults()
        return stream.getvalue()

    return run


def test_a_value_in_a_log_makes_no_line_of_its_own(write):
    text = write(lambda: get_logger().warning("access_denied", denied_table=STEERS, reason=STEERS))
    assert text.count("\n") == 1
    assert all(each.isprintable() for each in text.rstrip("\n"))
    assert "access_denied" in text
    if text.startswith("{"):
        assert json.loads(text)["denied_table"] == STEERS


# What a renderer quotes by itself, since it has a space or an end of line, would show nothing.
ODD = ["\x1b[2J", "\x1b]0;owned\x07", "\x9b31m", "\u202e", "\x00", "\x08"]


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_nothing_in_a_log_steers_a_terminal(write, odd):
    def fail():
        raise ValueError(odd)

    def log():
        get_logger().warning("own", table=f"a{odd}b")
        logging.getLogger("celery").error("foreign %s", odd)
        try:
            fail()
        except ValueError:
            get_logger().exception("failed")

    text = write(log)
    assert all(each.isprintable() for each in text.replace("\n", ""))
    assert text.count(odd.encode("unicode_escape").decode()) + text.count(json.dumps(odd)[1:-1]) >= 3


def test_a_traceback_shows_no_values(write):
    """Rich's, which structlog takes where it is installed, print the local variables of each frame."""

    def open_store(secret):
        raise ValueError(len(secret))

    def log():
        try:
            open_store("-".join(HUSH))
        except ValueError:
            get_logger().exception("failed")

    text = write(log)
    assert "open_store" in text
    assert "hush-hush" not in text


def test_credentials_are_hidden_whoever_logs_them(write):
    headers = {"authorization": f"Bearer {TOKEN}"}
    for log in (
        lambda: get_logger().error("unknown", headers=headers, text=TOKEN),
        lambda: logging.getLogger("celery").error("message %r", headers),
    ):
        text = write(log)
        assert "[hidden]" in text
        assert "A1b2A1b2" not in text


def test_settings_and_options_do_not_show_their_secrets():
    settings = ServiceSettings(store="file:///x", redis_url="redis://:hunter2@127.0.0.1/0")  # pragma: allowlist secret
    options = S3Options("http://x", access_key_id="id", secret_access_key="hush-hush")  # pragma: allowlist secret
    for shown in (repr(settings), str(settings), repr(options), str(options)):
        assert "hunter2" not in shown
        assert "hush-hush" not in shown


SECRETS = re.compile(
    r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s+[A-Za-z0-9+/=]{20}|\bAKIA[0-9A-Z]{16}\b|\bghp_[A-Za-z0-9]{36}\b"
    r"|\bxox[abprs]-[A-Za-z0-9-]{20,}|\bicedbt_[A-Za-z0-9_-]{43}\b|\bpypi-[A-Za-z0-9_-]{50,}"
)


def list_sources(root):
    """Return the names of all files of the repository; in a source archive those that .gitignore does not name."""
    if (root / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
        return [name for name in listed.decode().split("\0") if name]
    ignored = [line.rstrip("/") for line in (root / ".gitignore").read_text().split()]
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if not any(fnmatch(each, pattern) for pattern in ignored)]
        kept = (each for each in files if not any(fnmatch(each, pattern) for pattern in ignored))
        names += [str((Path(folder) / each).relative_to(root)) for each in kept]
    return names


def find_credentials(root):
    found = []
    for name in list_sources(root):
        path = root / name
        if path.is_file() and path.suffix not in (".parquet", ".svg"):
            match = SECRETS.search(path.read_text(encoding="utf-8", errors="replace"))
            if match:
                found.append(f"{name}: {match[0][:12]}…")
    return sorted(found)


def test_no_file_of_the_repository_holds_a_credential():
    """The quick part of `make audit`: what is a credential by its form alone."""
    assert (ROOT / "README.md").name in list_sources(ROOT)
    assert find_credentials(ROOT) == []


def test_a_source_archive_is_searched_without_git(tmp_path):
    """As it is unpacked: no history, and beside the sources what `make install` puts there."""
    (tmp_path / ".gitignore").write_text(".venv/\n*.pyc\n")
    for name in (".venv/lib/their.py", "src/ours.py", "src/ours.pyc", "src/clean.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("clean" if "clean" in name else f"token = {'icedbt_' + 'A' * 43!r}")
    assert sorted(list_sources(tmp_path)) == [".gitignore", "src/clean.py", "src/ours.py"]
    assert find_credentials(tmp_path) == ["src/ours.py: icedbt_AAAAA…"]


@pytest.mark.parametrize("console", [out, err])
def test_what_looks_like_a_name_of_an_emoji_is_data(console):
    with console.capture() as captured:
        console.print("a:b:c :x: :smile: root:x:0:0")
    assert captured.get() == "a:b:c :x: :smile: root:x:0:0\n"
