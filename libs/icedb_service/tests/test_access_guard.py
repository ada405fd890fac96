"""Who is recognised, and who may do what: the guard over an access file, without any server."""

import base64
import io
import json
import re
import tracemalloc
from collections import Counter

import pytest
import structlog
from icedb_log.errors import InvalidRequest, NotFound, Overloaded, PermissionDenied, Unauthenticated, Unavailable
from icedb_log.tables.stored_config import read_table_config
from icedb_log.testing.memory_store import MemoryObjectStore
from icedb_log.warehouse import Warehouse
from icedb_service.access import policy
from icedb_service.access.__main__ import main as command
from icedb_service.access.access_file import read_access_file
from icedb_service.access.guard import AccessGuard
from icedb_service.access.key_sets import FetchedKeys
from icedb_service.access.metrics import AccessMetrics
from icedb_service.access.opening import open_guard
from icedb_service.access.rate_limits import RateLimits
from icedb_service.access.source import AccessSource
from icedb_service.access.verbs import ANYBODY, Identity, Verb
from icedb_service.settings import ServiceSettings
from icedb_service.testing.access_rig import ISSUER, TokenIssuer, token_entry, write_access
from icedb_service.testing.manual_clock import ManualClock
from prometheus_client import CollectorRegistry, generate_latest

TOKEN = "icedb_alpha-token-0123456789"
OTHER = "icedb_beta-token-0123456789"
OLD = "icedb_old-token-0123456789"
SECRET = "s3-secret-of-alpha"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def issuer():
    return TokenIssuer()


@pytest.fixture
def document(tmp_path, issuer):
    (tmp_path / "keys.json").write_bytes(issuer.key_set())
    return {
        "identities": {
            "alpha": {
                "tokens": [token_entry(TOKEN), {**token_entry(OLD), "expires": "2020-01-01T00:00:00Z"}],
                "certificates": ["alpha.internal", "spiffe://prod/alpha"],
                "access_keys": [{"id": "ALPHAKEY", "secret": SECRET}],
            },
            "beta": {"tokens": [token_entry(OTHER)], "rate": {"calls_per_s": 2, "burst": 3}, "certificates": ["beta"]},
            "robot": {"jwt": [{"issuer": "login", "claims": {"groups": "robots"}}]},
        },
        "issuers": {
            "login": {
                "issuer": ISSUER,
                "audience": "icedb",
                "keys_file": "keys.json",
                "algorithms": ["ES256"],
                "identity_claim": "sub",
            }
        },
        "grants": [
            {"identities": ["alpha"], "tables": ["a_*"], "verbs": ["read", "append"]},
            {"identities": ["beta", "robot"], "tables": ["b_?"], "verbs": ["read"]},
            {"identities": ["login:team-*"], "tables": ["t_*"], "verbs": ["append"]},
        ],
    }


@pytest.fixture
def make(tmp_path, clock):
    def make(document):
        registry = CollectorRegistry()
        path = write_access(tmp_path / "access.json", document)
        metrics = AccessMetrics(registry)
        source = AccessSource(path, clock=clock, metrics=metrics)
        guard = AccessGuard(source, limits=RateLimits(clock), metrics=metrics)
        guard.registry = registry
        return guard

    return make


@pytest.fixture
def guard(make, document):
    return make(document)


def bearer(guard, token):
    return guard.identify(authorization=f"Bearer {token}")


def test_without_a_policy_everything_is_allowed():
    guard = AccessGuard()
    assert guard.identify(authorization="nonsense") is ANYBODY
    guard.require(ANYBODY, Verb.ERASE, "any")
    assert guard.visible(ANYBODY, ["a", "b"]) == ["a", "b"]
    assert guard.access_key("x") is None


def test_each_kind_of_credentials_is_recognised(guard, issuer, clock):
    assert bearer(guard, TOKEN) == Identity("alpha")
    assert guard.identify(authorization=f"bearer  {OTHER} ") == Identity("beta")
    assert guard.identify(certificate_names=["unknown", "spiffe://prod/alpha"]) == Identity("alpha")
    assert bearer(guard, issuer.sign(clock.now_ms(), groups=["x", "robots"])) == Identity("robot")
    assert bearer(guard, issuer.sign(clock.now_ms(), sub="team-1")) == Identity("login:team-1")
    assert guard.access_key("ALPHAKEY").identity == Identity("alpha")
    assert guard.access_key("alphakey") is None


def alg_none(clock):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = {"iss": ISSUER, "aud": "icedb", "sub": "team-1", "exp": clock.now_ms() // 1000 + 60}
    return f"{part({'alg': 'none'})}.{part(claims)}."


def wrong_tokens(issuer, clock):
    now_ms = clock.now_ms()
    valid = issuer.sign(now_ms, sub="team-1")
    return {
        "unknown": "icedb_nobody",
        "expired static": OLD,
        "the hash itself": token_entry(TOKEN)["sha256"],
        "with more behind it": TOKEN + "x",
        "expired": issuer.sign(now_ms - 2 * 3600_000),
        "not yet": issuer.sign(now_ms, nbf=now_ms // 1000 + 3600),
        "no expiry": issuer.sign(now_ms, exp=None),
        "other audience": issuer.sign(now_ms, aud="another"),
        "no audience": issuer.sign(now_ms, aud=None),
        "other issuer": issuer.sign(now_ms, iss="https://evil.test/"),
        "foreign key": TokenIssuer("k2").sign(now_ms),
        "foreign key of the same id": TokenIssuer("k1").sign(now_ms),
        "alg none": alg_none(clock),
        "claims changed": ".".join(
            [valid.split(".")[0], issuer.sign(now_ms, sub="boss").split(".")[1], valid.split(".")[2]]
        ),
        "cut off": valid[:-4],
        "no identity": issuer.sign(now_ms, sub="with space"),
        "not even a token": "ey..",
        "very long": "x" * 20_000,
    }


def test_wrong_tokens_are_nobodys_and_no_certificate_makes_them_good(guard, issuer, clock):
    for what, token in wrong_tokens(issuer, clock).items():
        with pytest.raises(Unauthenticated) as caught:
            guard.identify(authorization=f"Bearer {token}", certificate_names=["alpha.internal"])
        assert token not in str(caught.value), what
    for header in ("", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}, Bearer {TOKEN}"):
        with pytest.raises(Unauthenticated):
            guard.identify(authorization=header)
    for names in ([], ["unknown"], ["alpha.internal", "beta"], ["ALPHA.INTERNAL"]):
        with pytest.raises(Unauthenticated):
            guard.identify(certificate_names=names)


def test_a_grant_gives_its_verbs_for_its_tables_and_nothing_else(guard):
    allowed = {
        ("alpha", Verb.READ, "a_x"),
        ("alpha", Verb.APPEND, "a_x"),
        ("beta", Verb.READ, "b_1"),
        ("robot", Verb.READ, "b_1"),
        ("login:team-7", Verb.APPEND, "t_1"),
    }
    known = {("alpha", "a_x"), ("beta", "b_1"), ("robot", "b_1"), ("login:team-7", "t_1")}
    seen = Counter()
    for name in ("alpha", "beta", "robot", "login:team-7", "login:other", "anybody", "anonymous", "segment"):
        for table in ("a_x", "b_1", "b_12", "ba_x", "t_1", "a", ""):
            assert guard.can_see(Identity(name), table) == ((name, table) in known)
            for verb in Verb:
                outcome = "allowed"
                try:
                    guard.require(Identity(name), verb, table) if name != "beta" else guard_without_rate(
                        guard, verb, table
                    )
                except NotFound:
                    outcome = "hidden"
                except PermissionDenied:
                    outcome = "denied"
                expected = (
                    "allowed" if (name, verb, table) in allowed else "denied" if (name, table) in known else "hidden"
                )
                assert outcome == expected, (name, verb, table)
                seen[outcome] += 1
    assert seen["allowed"] == len(allowed)
    assert guard.visible(Identity("alpha"), ["b_1", "a_2", "a_1"]) == ["a_2", "a_1"]


def guard_without_rate(guard, verb, table):
    """As beta, but never too often."""
    guard._limits._buckets.clear()
    guard.require(Identity("beta"), verb, table)


def test_a_hidden_table_gives_the_error_of_one_that_is_not_there(guard, clock):
    warehouse = Warehouse(MemoryObjectStore(clock.now_ms))
    with pytest.raises(NotFound) as missing:
        read_table_config(warehouse.store, warehouse.table("b_1"))
    with pytest.raises(NotFound) as hidden:
        guard.require(Identity("alpha"), Verb.READ, "b_1")
    assert str(hidden.value) == str(missing.value)
    assert type(hidden.value) is type(missing.value)


def test_names_as_long_as_a_message_are_not_remembered(guard):
    tracemalloc.start()
    try:
        for number in range(20):
            with pytest.raises(NotFound):
                guard.require(Identity("alpha"), Verb.READ, f"{number}{'x' * 100_000}")
            guard.require(Identity("alpha"), Verb.READ, f"a_{'x' * 100_000}{number}")  # refused as no name later on
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()


def test_a_rate_lets_a_burst_through_and_then_says_how_long_to_wait(guard, clock):
    def call():
        guard.require(Identity("beta"), Verb.READ, "b_1")

    for _ in range(3):
        call()
    with pytest.raises(Overloaded) as caught:
        call()
    assert 400 <= caught.value.retry_after_ms <= 501
    clock.sleep_ms(caught.value.retry_after_ms)
    call()
    with pytest.raises(Overloaded):
        guard.charge(Identity("beta"))
    with pytest.raises(Overloaded):  # also what is not there: names cannot be tried out faster
        guard.require(Identity("beta"), Verb.READ, "nothing")
    for _ in range(20):
        guard.require(Identity("alpha"), Verb.READ, "a_x")


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


def test_keys_of_an_issuer_change_with_their_file(guard, issuer, clock, tmp_path):
    newer = TokenIssuer("k2")
    with pytest.raises(Unauthenticated):
        bearer(guard, newer.sign(clock.now_ms(), sub="team-1"))
    (tmp_path / "keys.json").write_bytes(newer.key_set())
    clock.sleep_ms(1000)
    assert bearer(guard, newer.sign(clock.now_ms(), sub="team-1")) == Identity("login:team-1")
    with pytest.raises(Unauthenticated):
        bearer(guard, issuer.sign(clock.now_ms(), sub="team-1"))


def test_keys_from_an_address_are_fetched_beside_the_calls(make, document, issuer, clock, monkeypatch):
    answers = []
    started = []

    def download(_url):
        if not answers:
            raise OSError("no route")
        return answers[-1]

    monkeypatch.setattr("icedb_service.access.key_sets._download", download)
    monkeypatch.setattr(
        "icedb_service.access.key_sets.threading.Thread",
        lambda target, **_: type("Thread", (), {"start": staticmethod(lambda: started.append(target))}),
    )
    document["issuers"]["login"] |= {"keys_url": "https://login.test/keys"}
    del document["issuers"]["login"]["keys_file"]
    guard = make(document)
    token = issuer.sign(clock.now_ms(), sub="team-1")
    for _ in range(2):
        with pytest.raises(Unavailable):
            bearer(guard, token)
    assert len(started) == 1
    started.pop()()
    with pytest.raises(Unavailable):
        bearer(guard, token)
    answers.append(issuer.key_set())
    clock.sleep_ms(10_000)
    with pytest.raises(Unavailable):
        bearer(guard, token)
    started.pop()()
    assert bearer(guard, token) == Identity("login:team-1")
    assert not started
    newer = TokenIssuer("k2")
    answers.append(newer.key_set())
    clock.sleep_ms(10_000)
    with pytest.raises(Unauthenticated):  # the key is not known: fetched anew, once
        bearer(guard, newer.sign(clock.now_ms(), sub="team-1"))
    started.pop()()
    assert bearer(guard, newer.sign(clock.now_ms(), sub="team-1")) == Identity("login:team-1")


def test_a_valid_jwt_is_remembered_for_a_minute_and_never_past_its_end(guard, issuer, clock, monkeypatch):
    checked = []
    verify = policy.verify_jwt
    monkeypatch.setattr(policy, "verify_jwt", lambda *given, **more: checked.append(1) or verify(*given, **more))
    token = issuer.sign(clock.now_ms(), sub="team-1", exp=clock.now_ms() // 1000 + 90)
    for passed_ms, checks in ((0, 1), (0, 1), (59_000, 1), (2_000, 2), (30_000, 3), (10_000, 4)):
        clock.sleep_ms(passed_ms)
        assert bearer(guard, token) == Identity("login:team-1")
        assert len(checked) == checks
    clock.sleep_ms(50_000)  # its end, and what clocks may differ by
    for _ in range(2):
        with pytest.raises(Unauthenticated, match="expired"):
            bearer(guard, token)


def test_only_public_keys_of_a_set_are_taken(clock, monkeypatch):
    monkeypatch.setattr(
        "icedb_service.access.key_sets._download",
        lambda _url: b'{"keys":[{"kty":"oct","k":"c2VjcmV0LXNlY3JldC1zZWNyZXQ","kid":"k1"}]}',
    )
    source = FetchedKeys("https://login.test/keys", clock=clock)
    with structlog.testing.capture_logs() as logs:
        source.fetch()
    assert "secret key" in logs[0]["error"]
    assert "c2VjcmV0LX" not in str(logs)


def test_secrets_stand_in_no_log_error_repr_or_metric(make, document, clock, issuer, tmp_path):
    shown = []
    with structlog.testing.capture_logs() as logs:
        guard = make(document)
        for token in (TOKEN, OTHER, *wrong_tokens(issuer, clock).values()):
            try:
                identity = bearer(guard, token)
                guard.require(identity, Verb.ERASE, "a_x")
            except (Unauthenticated, PermissionDenied, NotFound) as error:
                shown.append(repr(error))
        shown += [repr(guard.access_key("ALPHAKEY")), repr(guard._source.current()._access)]
        for broken in (
            {"identities": {"alpha": {"tokens": [{"sha256": TOKEN}]}}},
            {"identities": {"alpha": {"tokens": [TOKEN]}}},
            {"identities": {"alpha": {"access_keys": [{"id": "ALPHAKEY", "secret": SECRET, "secret_file": SECRET}]}}},
            {"identities": {"alpha": {"access_keys": [{"id": "x", "secret": [SECRET]}]}}},
        ):
            with pytest.raises(InvalidRequest) as caught:
                make(broken)
            shown += [str(caught.value), repr(caught.value.__cause__)]
    shown += [str(logs), generate_latest(guard.registry).decode()]
    text = "\n".join(shown)
    assert "access_denied" in text
    for secret in (
        TOKEN,
        OTHER,
        OLD,
        SECRET,
        *list(wrong_tokens(issuer, clock).values())[:4],
        issuer.sign(clock.now_ms())[:40],
    ):
        assert secret not in text


def test_refusals_are_counted_by_door_and_reason_without_names(guard):
    with pytest.raises(Unauthenticated):
        guard.at("http").identify()
    with pytest.raises(NotFound):
        guard.at("task").require(Identity("alpha"), Verb.READ, "b_1")
    page = generate_latest(guard.registry).decode()
    assert 'icedb_access_denied_total{door="http",reason="no_credentials"} 1.0' in page
    assert 'icedb_access_denied_total{door="task",reason="hidden"} 1.0' in page
    assert "b_1" not in page and "alpha" not in page


def test_callers_without_credentials_are_anonymous_where_the_file_says_so(make, document):
    document["identities"]["anonymous"] = {}
    guard = make(document)
    assert guard.identify() == Identity("anonymous")
    assert guard.identify(certificate_names=["alpha.internal"]) == Identity("alpha")
    with pytest.raises(Unauthenticated):
        bearer(guard, "wrong")


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
