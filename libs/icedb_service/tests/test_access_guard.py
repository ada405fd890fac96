"""Who is recognised, and who may do what: the guard over an access file, without any server."""

import base64
import json
import tracemalloc
from collections import Counter
from datetime import UTC, datetime

import pytest
import structlog
from icedb_log.errors import InvalidRequest, NotFound, Overloaded, PermissionDenied, Unauthenticated
from icedb_log.table.stored_config import read_table_config
from icedb_log.warehouse import Warehouse
from icedb_service.access import guard as guard_module
from icedb_service.access.access_file import ANYBODY, Identity, RateEntry, Verb
from icedb_service.access.credentials import HELD, GrpcAccess, HttpAccess
from icedb_service.access.guard import AccessGuard, Places, RateLimited, RateLimits
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.rigs.access_rig import ISSUER, TokenIssuer, token_entry
from icedb_sim.rigs.guard_rig import OLD, OTHER, SECRET, TOKEN, bearer
from prometheus_client import generate_latest


def test_without_a_policy_everything_is_allowed():
    guard = AccessGuard()
    assert guard.identify(authorization="nonsense") is ANYBODY
    guard.require(ANYBODY, Verb.ERASE, "any")
    assert guard.can_see(ANYBODY, "any")
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
    for names, reason in (
        ([], "wants to know who calls"),
        (["unknown"], "those of no identity"),
        (["ALPHA.INTERNAL"], "those of no identity"),
        (["alpha.internal", "beta"], "several identities"),
    ):
        with pytest.raises(Unauthenticated, match=reason):
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
    assert [table for table in ("b_1", "a_2", "a_1") if guard.can_see(Identity("alpha"), table)] == ["a_2", "a_1"]


def test_a_grant_is_of_whole_names(make, document):
    """`team-a` is not `team-ab`, nor the other way round; of several names in a grant each stands by itself."""
    document["identities"].update({name: {} for name in ("team-a", "team-ab", "my-team-a", "team-b")})
    document["grants"] = [
        {"identities": ["team-a"], "tables": ["t"], "verbs": ["read"]},
        {"identities": ["team-b", "team-ab"], "tables": ["u", "v_?"], "verbs": ["read"]},
        {"identities": ["login:a*"], "tables": ["w_*x"], "verbs": ["read"]},
    ]
    guard = make(document)
    names = ("team-a", "team-ab", "my-team-a", "team-b", "team-bteam-ab", "team-a\n", "login:a\nb", "xlogin:ab")
    tables = ("t", "tt", "t\n", "xt", "u", "uv_1", "v_1", "v_12", "w_x", "w_xy", "w_\nx", "")
    seen = {(name, table) for name in names for table in tables if guard.can_see(Identity(name), table)}
    assert seen == {
        ("team-a", "t"),
        *((name, table) for name in ("team-b", "team-ab") for table in ("u", "v_1")),
        *(("login:a\nb", table) for table in ("w_x", "w_\nx")),
    }


def guard_without_rate(guard, verb, table):
    """As beta, but never too often."""
    guard._limits._buckets.clear()
    guard.require(Identity("beta"), verb, table)


def test_a_hidden_table_gives_the_error_of_one_that_is_not_there(guard, clock):
    warehouse = Warehouse(MemoryObjectStore(clock.now_ms))
    with pytest.raises(NotFound) as missing:
        read_table_config(warehouse.table("b_1"))
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
    for _ in range(3):
        guard.charge(Identity("beta"))
    with pytest.raises(Overloaded):
        guard.charge(Identity("beta"))
    page = generate_latest(guard.registry).decode()
    assert 'icedb_access_denied_total{door="grpc",reason="rate"} 1.0' in page
    assert 'icedb_access_denied_total{door="http",reason="no_credentials"} 1.0' in page
    assert 'icedb_access_denied_total{door="task",reason="hidden"} 1.0' in page
    assert "b_1" not in page and "alpha" not in page


def test_nobody_holds_more_than_half_of_a_pool(guard):
    places = Places("watchers", setting="ICEDB_SNAPSHOT_MAX_WATCHERS", size=5)
    alpha, beta = Identity("alpha"), Identity("beta")
    held = [guard.hold(alpha, places) for _ in range(2)]
    with pytest.raises(Overloaded, match="alpha has 2 watchers here already; nobody may have more than 2, half of all"):
        guard.hold(alpha, places)
    guard.hold(beta, places)
    for _ in range(2):  # what is given back twice is given back once
        held[0]()
    guard.hold(alpha, places)
    with pytest.raises(Overloaded):
        guard.hold(alpha, places)
    page = generate_latest(guard.registry).decode()
    assert 'icedb_access_denied_total{door="grpc",reason="share"} 2.0' in page
    assert Places("calls", setting="x", size=1).take("alpha")


def test_one_thing_alone_may_be_larger_than_a_share():
    places = Places("bytes", setting="x", size=10)
    assert places.fits("alpha", 9)
    places.add("alpha", 3)
    assert [places.fits("alpha", size) for size in (2, 3)] == [True, False]
    assert places.fits("alpha", 6, beside=3)  # it grows, and there is nothing else
    places.add("alpha", 1)
    assert not places.fits("alpha", 6, beside=3)
    assert places.fits("beta", 5) and places.fits(None, 100)
    places.add("alpha", -4)
    assert places.held_by("alpha") == 0 and places.fits("alpha", 9)


def test_what_is_counted_elsewhere_is_divided_as_well(guard):
    places = Places("leases of table t", setting="ICEDB_SNAPSHOT_MAX_LEASES", size=4)
    guard.check_share(Identity("alpha"), places, held=1)
    with pytest.raises(RateLimited, match="alpha has 3 leases of table t here already; nobody may have more than 2"):
        guard.check_share(Identity("alpha"), places, held=3)
    assert 'icedb_access_denied_total{door="grpc",reason="share"} 1.0' in generate_latest(guard.registry).decode()
    AccessGuard().check_share(ANYBODY, places, held=4)


def test_a_request_holds_one_place_of_each_pool_until_it_ends(guard):
    access, streams = HttpAccess(guard, max_requests=4), Places("streams", setting="y", size=2)
    webhooks = access.at("webhook")

    def request(token=TOKEN):
        return {"headers": [(b"authorization", f"Bearer {token}".encode())], HELD: {}}

    first, second = request(), request()
    for call in (first, second):
        assert access.recognise(call) == webhooks.recognise(call) == Identity("alpha")  # of one server
    access.hold(first, Identity("alpha"), streams)
    for refused in (lambda: webhooks.recognise(request()), lambda: access.hold(second, Identity("alpha"), streams)):
        with pytest.raises(RateLimited):
            refused()
    assert access.recognise(request(OTHER)) == Identity("beta")
    for release in first[HELD].values():
        release()
    access.recognise(request())
    access.hold(second, Identity("alpha"), streams)
    page = generate_latest(guard.registry).decode()
    assert 'icedb_access_denied_total{door="webhook",reason="share"} 1.0' in page


def test_without_a_policy_nobody_is_told_from_others():
    places = Places("calls", setting="x", size=2)
    guard = AccessGuard()
    for _ in range(5):
        guard.hold(guard.identify(), places)()
        guard.hold(guard.identify(), places)
    access = HttpAccess(guard, max_requests=2)
    for _ in range(5):
        access.recognise({"headers": [], HELD: {}})


class Call:
    """A gRPC call with a token."""

    def __init__(self, token):
        self.ends, self.token = [], token

    def invocation_metadata(self):
        return (("authorization", f"Bearer {self.token}"),)

    def auth_context(self):
        return {}

    def add_done_callback(self, end):
        self.ends.append(end)


def test_a_call_holds_its_place_until_it_ends(guard):
    access = GrpcAccess(guard, Places("calls", setting="ICEDB_FRONTEND_MAX_CALLS", size=4))
    first, second, third = (Call(TOKEN) for _ in range(3))
    for call in (first, second):
        assert access.recognise(call).name == "alpha"
    with pytest.raises(Overloaded, match="ICEDB_FRONTEND_MAX_CALLS"):
        access.recognise(third)
    first.ends[0](first)
    assert access.recognise(third).name == "alpha"


def test_callers_without_credentials_are_anonymous_where_the_file_says_so(make, document):
    document["identities"]["anonymous"] = {}
    guard = make(document)
    assert guard.identify() == Identity("anonymous")
    assert guard.identify(certificate_names=["alpha.internal"]) == Identity("alpha")
    with pytest.raises(Unauthenticated):
        bearer(guard, "wrong")


def test_a_token_ends_at_its_time_and_not_after(make, document, clock):
    document["identities"]["alpha"]["tokens"][0]["expires"] = "2026-01-01T00:00:00Z"
    guard = make(document)
    ends_ms = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    clock.set_wall(ends_ms - 1)
    assert bearer(guard, TOKEN) == Identity("alpha")
    clock.set_wall(ends_ms)
    with pytest.raises(Unauthenticated, match="expired"):
        bearer(guard, TOKEN)


def test_a_token_counts_as_its_own_issuers_and_no_others(make, document, clock, tmp_path):
    """Two issuers with claims alike: a rule is about one of them, and so is the name that a claim gives."""
    other = TokenIssuer("k9")
    (tmp_path / "other.json").write_bytes(other.key_set())
    address = "https://other.test/"
    document["issuers"]["other"] = {**document["issuers"]["login"], "issuer": address, "keys_file": "other.json"}
    guard = make(document)
    assert bearer(guard, other.sign(clock.now_ms(), iss=address, groups=["robots"], sub="team-1")) == Identity(
        "other:team-1"
    )


@pytest.mark.parametrize("claim", ["robots-2", ["robots-2"], "no robots", {"robots": True}, [["robots"]], 7, None])
def test_a_claim_is_the_wanted_value_or_a_list_that_has_it(guard, issuer, clock, claim):
    assert bearer(guard, issuer.sign(clock.now_ms(), groups=claim)) == Identity("login:somebody")
    assert bearer(guard, issuer.sign(clock.now_ms(), groups="robots")) == Identity("robot")


def test_who_was_quiet_for_long_has_saved_no_more_than_a_burst(guard, clock):
    clock.sleep_ms(3_600_000)
    guard.charge(Identity("beta"))
    clock.sleep_ms(3_600_000)
    for _ in range(3):
        guard.charge(Identity("beta"))
    with pytest.raises(Overloaded):
        guard.charge(Identity("beta"))


def test_of_too_many_callers_who_called_longest_ago_is_forgotten(monkeypatch):
    monkeypatch.setattr(guard_module, "MAX_BUCKETS", 2)
    limits, rate = RateLimits(FakeClock()), RateEntry(calls_per_s=0.001, burst=1)
    assert [limits.take(name, rate) > 0 for name in ("a", "b", "a", "c")] == [False, False, True, False]
    assert [limits.take(name, rate) > 0 for name in ("a", "b")] == [True, False]
