"""Access files: read again, refused, asked for where a service is open, and made by the command."""

import io
import re

import pytest
import structlog
from icedb_log.errors import InvalidRequest, Unauthenticated
from icedb_service.access.__main__ import main as command
from icedb_service.access.access_file import Identity, read_access_file
from icedb_service.access.guard import open_guard
from icedb_service.access.policy import AccessSource
from icedb_service.metrics import AccessMetrics
from icedb_service.settings import ServiceSettings
from icedb_sim.rigs.access_rig import token_entry, write_access
from icedb_sim.rigs.guard_rig import TOKEN, bearer
from prometheus_client import CollectorRegistry, generate_latest


def test_a_changed_file_counts_and_a_broken_one_leaves_the_old_one(make, document, clock, tmp_path):
    guard = make(document)
    path = tmp_path / "access.json"
    with structlog.testing.capture_logs() as logs:
        path.write_text("{")
        clock.sleep_ms(1000)
        assert bearer(guard, TOKEN) == Identity("alpha")
        clock.sleep_ms(1000)
        assert bearer(guard, TOKEN) == Identity("alpha")
        assert "icedb_access_file_broken 1.0" in generate_latest(guard.registry).decode()
        path.unlink()
        clock.sleep_ms(1000)
        assert bearer(guard, TOKEN) == Identity("alpha")
        del document["identities"]["alpha"]["tokens"][0]
        write_access(path, document)
        clock.sleep_ms(1000)
        with pytest.raises(Unauthenticated):
            bearer(guard, TOKEN)
    assert "icedb_access_file_broken 0.0" in generate_latest(guard.registry).decode()
    assert [log["event"] for log in logs if log["event"] != "access_denied"] == [
        "access_file_broken",
        "access_file_broken",
        "access_file_loaded",
    ]


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("version = 1\n[x\n", r"line 2"),
        ("", r"version: Field required"),
        ("version = 2", r"version: Input should be 1"),
        ("version = 1\n[identities.a]\ntoken = 1", r"line 2: identities\.a\.token: Extra inputs"),
        ('version = 1\n[[identities.a.tokens]]\nsha256 = "x"', r"line 2: identities\.a\.tokens\[0\]\.sha256"),
        ('version = 1\n[[grants]]\nidentities = ["x"]\ntables = ["*"]\nverbs = ["read"]', r"grants\[0\]: no identity is called 'x'"),
        ('version = 1\n[[grants]]\nidentities = ["*"]\ntables = ["A.b"]\nverbs = ["read"]', r"line 2: grants\[0\]\.tables\[0\]"),
        ('version = 1\n[[grants]]\nidentities = ["*"]\ntables = ["*"]\nverbs = ["write"]', r"line 2: grants\[0\]\.verbs\[0\]: Input should be 'read'"),
        ('version = 1\n[identities."a:b"]', r"'a:b' is no name"),
        ('version = 1\n[identities.segment]\ncertificates = ["x"]', r"identities\.segment: takes no credentials"),
        ('version = 1\n[identities.a]\ncertificates = ["x"]\n[identities.b]\ncertificates = ["x"]', r"identities\.b: a certificate name .* a, too"),
        ('version = 1\n[identities.a]\njwt = [{issuer = "no", claims = {sub = "x"}}]', r"no issuer is called 'no'"),
        ('version = 1\n[issuers.i]\nissuer = "x"\naudience = "y"', r"line 2: issuers\.i: give exactly one of keys_file"),
        ('version = 1\n[issuers.i]\nissuer = "x"\naudience = "y"\nkeys_url = "http://x/"', r"https"),
        ('version = 1\n[issuers.i]\nissuer = "x"\naudience = "y"\nkeys_url = "http://localhost:1@x/"', r"https"),
        ('version = 1\n[issuers.i]\nissuer = "x"\naudience = "y"\nkeys_file = "k"\nalgorithms = ["HS256"]', r"issuers\.i\.algorithms\[0\]"),
        ('version = 1\n[issuers.i]\nissuer = "x"\naudience = "y"\nkeys_file = "k"', r"key set .*k: No such file"),
        ('version = 1\n[identities.a]\naccess_keys = [{id = "ABCD", secret_file = "s"}]', r"access key ABCD: secret_file"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_line_and_entry(toml, message, tmp_path, clock):
    path = tmp_path / "access.toml"
    path.write_text(toml)
    with pytest.raises(InvalidRequest, match=re.escape(str(tmp_path)) + ".*") as caught:
        AccessSource(path, clock=clock)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_a_service_is_open_to_its_own_machine_only_unless_told_so(clock, tmp_path, document):
    def guard(*hosts, **fields):
        settings = ServiceSettings(store="file:///w", **fields)
        return open_guard(settings, clock=clock, metrics=AccessMetrics(CollectorRegistry()), hosts=hosts)

    with structlog.testing.capture_logs() as logs:
        assert not guard("127.0.0.1", "[::1]", "localhost").is_enforced
    assert [log["event"] for log in logs] == ["access_open"]
    for host in ("0.0.0.0", "", "[::]", "icedb.internal", "10.0.0.1"):
        with pytest.raises(InvalidRequest, match="ICEDB_OPEN_ACCESS"):
            guard("127.0.0.1", host)
    assert not guard("0.0.0.0", open_access=True).is_enforced
    file = write_access(tmp_path / "access.json", document)
    with structlog.testing.capture_logs() as logs:
        assert guard("0.0.0.0", access_file=str(file)).is_enforced
    assert [log["event"] for log in logs] == ["access_enforced", "tokens_without_tls"]
    with pytest.raises(InvalidRequest, match=r"no\.toml.*No such file"):
        guard("127.0.0.1", access_file=str(tmp_path / "no.toml"))


def test_the_command_makes_tokens_and_checks_files(tmp_path, document, capsys, monkeypatch):
    assert command(["new-token"]) == 0
    shown = capsys.readouterr()
    token = shown.out.strip()
    assert token.startswith("icedbt_") and len(token) == 50
    assert token not in shown.err
    monkeypatch.setattr("sys.stdin", io.StringIO(token + "\n"))
    assert command(["hash"]) == 0
    assert capsys.readouterr().out.strip() == token_entry(token)["sha256"]
    assert token_entry(token)["sha256"] in shown.err
    file = str(write_access(tmp_path / "access.json", document))
    assert command(["check", file]) == 0
    assert "grant alpha: read, append a_*" in capsys.readouterr().out
    assert command(["check", file, "--may", "alpha", "read", "a_1"]) == 0
    assert command(["check", file, "--may", "alpha", "erase", "a_1"]) == 1
    assert command(["check", file, "--may", "alpha", "write", "a_1"]) == 2
    (tmp_path / "keys.json").write_text("{}")
    assert command(["check", file]) == 2
    assert "key set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("json", "[" * 100_000),
        ("json", '{"version":' + "1" * 5000 + "}"),
        ("toml", "a = " + "[" * 3000),
        ("toml", "a = " + "9" * 5000),
    ],
    ids=["levels in JSON", "digits in JSON", "levels in TOML", "digits in TOML"],
)
def test_an_access_file_that_no_reader_takes_is_refused(tmp_path, suffix, text):
    path = tmp_path / f"access.{suffix}"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=f"access file {path}: "):
        read_access_file(path)
