"""Names and credentials: keys, table names, batch ids, the access file, JSON Web Tokens, signatures of S3 requests."""

import base64
import itertools
import json

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from icedb_gateway.errors import S3Error
from icedb_gateway.requests import parse_request
from icedb_gateway.signature import check_signature, check_time, read_claim
from icedb_log.clock import make_uuid7_hex, parse_uuid7_ms
from icedb_log.errors import CorruptLog, InvalidRequest, PermissionDenied, Unauthenticated
from icedb_log.keys import (
    TablePaths,
    check_table_name,
    check_tag_name,
    file_time_ms,
    parse_audit_key,
    parse_hold_key,
    parse_log_key,
    parse_publication_key,
    parse_staged_key,
)
from icedb_log.store.object_store import check_key, is_listable
from icedb_log.warehouse import Warehouse
from icedb_service.access.access_file import read_access_file
from icedb_service.access.guard import AccessGuard, RateLimits
from icedb_service.access.policy import AccessSource, hash_token
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.rigs.access_rig import AUDIENCE, ISSUER, TokenIssuer, token_entry, write_access
from icedb_sim.tables.profiles import fuzz_examples

PATHS = TablePaths("events", "wh/events")
NAMES = st.one_of(
    st.text(max_size=10),
    st.sampled_from(["events", "events\n", "Events", "", "..", "a/b", "a" * 64, "a" * 63, "1a", "_a", "é", "\ud800", "a\x00", "٣a", "a٣"]),
)  # fmt: skip
LOG_NAMES = st.builds(
    lambda ms, m, i, e: f"{ms}_{m}{i}{e}",
    st.sampled_from(["1700000000000", "170000000000", "17000000000000", "٣" * 13, "0000000000000", "9999999999999", "-170000000000"]),
    st.sampled_from(["", "m_", "M_", "m", "_"]),
    st.text("0123456789abcdefgGm_-./é", max_size=12),
    st.sampled_from([".jsonl", ".json", "", ".jsonl\n", ".jsonl.gz"]),
)  # fmt: skip


@fuzz_examples(150)
@given(NAMES)
def test_a_name_that_is_taken_is_one_component_below_the_root(name):
    warehouse = Warehouse(MemoryObjectStore(lambda: 0), "wh")
    for check in (check_table_name, check_tag_name):
        try:
            check(name)
        except InvalidRequest as error:
            assert 0 < len(str(error)) < 500
            continue
        assert name.isascii() and "/" not in name and "." not in name and name == name.strip()
    try:
        paths = warehouse.table(name).paths
    except InvalidRequest:
        event("refused")
        return
    event("taken")
    assert paths.prefix == f"wh/{name}"
    assert check_key(paths.config_key).count("/") == 3


@fuzz_examples(200)
@given(st.one_of(LOG_NAMES, st.text(max_size=40)))
def test_a_log_key_is_read_or_corrupt(name):
    key = f"{PATHS.log_prefix}{name}"
    try:
        parsed = parse_log_key(key)
    except CorruptLog as error:
        event("refused")
        assert key in str(error)
    else:
        event("read")
        assert (
            PATHS.log_key(time_ms=parsed.time_ms, commit_id=parsed.commit_id, is_merged=parsed.is_merged).rpartition(
                "/"
            )[2]
            == name.rpartition("/")[2]
        )
    parse_audit_key(key)
    parse_hold_key(key)
    parse_publication_key(key)
    file_time_ms(key)
    try:
        parse_staged_key(key)
    except InvalidRequest:
        event("no batch")
    is_listed = "\ud800" not in name and is_listable_safely(key)
    assert is_listed in (True, False)


def is_listable_safely(key):
    try:
        check_key(key)
    except InvalidRequest:
        return is_listable(key)
    assert is_listable(key)
    return True


@fuzz_examples(150)
@given(
    st.one_of(
        st.text(max_size=40),
        st.builds(
            lambda ms, bits, edit: edit("-".join(make_uuid7_hex(ms, bits)[a:b] for a, b in itertools.pairwise((0, 8, 12, 16, 20, 32)))),
            st.integers(0, 2**48 - 1),
            st.integers(0, 2**74 - 1),
            st.sampled_from([str, str.upper, lambda text: text + "\n", lambda text: text.replace("-", ""), lambda text: "{" + text + "}", lambda text: text[:-1], lambda text: text.replace("7", "4")]),
        ),
    )
)  # fmt: skip
def test_a_batch_id_is_canonical_or_refused(text):
    try:
        time_ms = parse_uuid7_ms(text)
    except InvalidRequest as error:
        event("refused")
        assert 0 < len(str(error)) < 500
        return
    event("taken")
    assert 0 <= time_ms < 2**48
    assert PATHS.staging_key(batch_id=text, staging_format="json").endswith(f"/{text}.json")
    assert text == text.lower() and len(text) == 36 and text.isascii()


# ---- the access file --------------------------------------------------------------------------------------------

ACCESS = {
    "version": 1,
    "identities": {"fuzz": {"tokens": [{"sha256": "0" * 64}], "rate": {"calls_per_s": 5, "burst": 3}}},
    "issuers": {},
    "grants": [{"identities": ["fuzz"], "tables": ["*"], "verbs": ["read"]}],
}
SCALARS = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            0,
            -1,
            10**400,
            0.5,
            "",
            "*",
            "fuzz",
            "\ud800",
            "x" * 400,
            "segment",
            "anonymous",
            "0" * 64,
            "2020-01-01T00:00:00Z",
            "https://x/",
            "a\nb",
        ]
    ),
    st.text(max_size=6),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["fuzz", "tokens", "sha256", "jwt", "claims", "issuer", "id", "secret", "version", "", "é"]), inner, max_size=2), max_leaves=4)  # fmt: skip


def put(document, path, value):
    """Return a copy with a value somewhere in it."""
    document = json.loads(json.dumps(document))
    here = document
    for number in path[:-1]:
        keys = sorted(here) if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else []
        if not keys:
            break
        following = here[list(keys)[number % len(keys)]]
        if not isinstance(following, dict | list) or not following:
            break
        here = following
    keys = list(here) if isinstance(here, dict) else list(range(len(here)))
    here[keys[path[-1] % len(keys)]] = value
    return document


TEXTS = st.one_of(
    st.builds(put, st.just(ACCESS), st.lists(st.integers(0, 5), min_size=1, max_size=5), VALUES).map(json.dumps),
    VALUES.map(json.dumps),
    st.sampled_from(["", "[" * 100_000, '{"a":' * 100_000, '{"version":' + "1" * 5000 + "}", '{"version":1,"version":2}', "NaN", "a = " + "[" * 3000, "a = " + "9" * 5000, "a.b.c = 1\na = 2", "[identities.x]\n[[identities.x.tokens]]\nsha256 = 5"]),
    st.text(max_size=60),
)  # fmt: skip


@fuzz_examples(200)
@given(st.sampled_from([".json", ".toml"]), TEXTS)
@example(".json", "[" * 100_000)
@example(".json", '{"version":' + "1" * 5000 + "}")
@example(".toml", "a = " + "[" * 3000)
@example(".toml", "a = " + "9" * 5000)
def test_an_access_file_is_read_or_refused(tmp_path_factory, suffix, text):
    path = tmp_path_factory.getbasetemp() / f"access{suffix}"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        read_access_file(path)
    except InvalidRequest as error:
        event("refused")
        assert str(path) in str(error)
        assert len(str(error)) < 20_000
        return
    event("read")


# ---- tokens -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guard(tmp_path_factory):
    """A guard with a token, and an issuer of JWTs."""
    folder = tmp_path_factory.mktemp("access")
    issuer = TokenIssuer()
    (folder / "keys.json").write_bytes(issuer.key_set())
    path = write_access(
        folder / "access.json",
        {
            "identities": {"fuzz": {"tokens": [token_entry("icedbt_fuzz")], "jwt": [{"issuer": "login", "claims": {"sub": "somebody"}}]}},
            "issuers": {"login": {"issuer": ISSUER, "audience": AUDIENCE, "keys_file": str(folder / "keys.json"), "algorithms": ["ES256"]}},
        },
    )  # fmt: skip
    clock = FakeClock()
    limits = RateLimits(clock)
    return AccessGuard(AccessSource(path, clock=clock), limits=limits), issuer, clock


def part(value):
    return (
        base64.urlsafe_b64encode(value if isinstance(value, bytes) else json.dumps(value).encode())
        .rstrip(b"=")
        .decode()
    )


HEADERS = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "alg": st.sampled_from(["ES256", "none", "None", "HS256", "RS256", "", None, 5, ["ES256"], {}]),
            "kid": st.sampled_from(["k1", "other", "", None, 5, ["k1"], {}]),
            "crit": st.sampled_from([["b64"], [], "b64", None, [5]]),
            "b64": st.booleans(),
            "zip": st.sampled_from(["DEF", None, 5]),
            "jwk": st.sampled_from([{}, None, {"kty": "EC"}]),
            "typ": st.sampled_from(["JWT", 5, None]),
        },
    ),
    st.sampled_from([[], 5, None, "x", b"[" * 20_000, b'{"a":' * 2000, b"\xff", b"", b'{"alg":"ES256","alg":"none"}', b"1" * 5000]),
)  # fmt: skip
CLAIM_VALUES = st.sampled_from(
    [
        None,
        0,
        -1,
        10**400,
        1e308,
        "",
        "x",
        True,
        [],
        ["icedb", 5],
        {},
        "icedb",
        ISSUER,
        2**63,
        "1700000000",
        4_000_000_000,
    ]
)
CLAIMS = st.dictionaries(st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "x"]), CLAIM_VALUES, max_size=5)


def refused(guard, token):
    try:
        guard.identify(authorization=f"Bearer {token}")
    except (Unauthenticated, PermissionDenied) as error:
        assert 0 < len(str(error)) < 1000
        return True
    return False


@fuzz_examples(200)
@given(HEADERS, CLAIMS | st.binary(max_size=10), st.one_of(st.binary(max_size=70), st.just(b"\x00" * 64)))
@example(b"[" * 20_000, {}, b"")
@example({"alg": "none"}, {"sub": "somebody"}, b"")
def test_a_token_that_nobody_signed_is_refused(guard, header, claims, signature):
    assert refused(guard[0], f"{part(header)}.{part(claims)}.{part(signature)}"[:16_000])


@fuzz_examples(60)
@given(CLAIMS)
def test_a_signed_token_with_odd_claims_is_refused_or_right(guard, claims):
    known, issuer, clock = guard
    try:
        token = issuer.sign(clock.now_ms(), **claims)
    except Exception:
        event("cannot be signed")
        return
    is_refused = refused(known, token)
    event("refused" if is_refused else "known")
    if not is_refused:
        assert claims.get("sub", "somebody") == "somebody"
        assert claims.get("iss", ISSUER) == ISSUER


@fuzz_examples(120)
@given(
    st.text(max_size=40)
    | st.sampled_from(
        [
            "Bearer icedbt_fuzz2",
            "bearer  ",
            "Bearer icedbt_fuzz,",
            "ey..",
            "Bearer ey.ey.",
            "Bearer ey" + "." * 20_000,
            "Bearer \ud800",
            "Bearer " + "x" * 20_000,
        ]
    )
)
def test_an_authorization_header_is_known_or_refused(guard, header):
    try:
        guard[0].identify(authorization=header)
    except Unauthenticated as error:
        assert 0 < len(str(error)) < 500
        return
    assert hash_token(header.split()[-1]) == token_entry("icedbt_fuzz")["sha256"]


# ---- requests of S3 ---------------------------------------------------------------------------------------------

SCOPE_TEXTS = st.one_of(
    st.sampled_from(["", "20260102T030405Z", "FUZZ/20260102/us-east-1/s3/aws4_request", "UNSIGNED-PAYLOAD", "host;x-amz-date", "host", "0" * 64, "AWS4-HMAC-SHA256", "604800", "99999999", "²", "x" * 300]),
    st.text(max_size=8),
)  # fmt: skip
QUERY_NAMES = st.sampled_from(
    [
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
        "x-amz-date",
        "prefix",
        "AWSAccessKeyId",
        "Signature",
        "",
    ]
)


def percent(text):
    return "".join(f"%{byte:02X}" for byte in text.encode(errors="surrogatepass"))


@fuzz_examples(200)
@given(
    st.lists(st.tuples(QUERY_NAMES, SCOPE_TEXTS.map(percent)), max_size=7),
    st.lists(st.tuples(st.sampled_from([b"authorization", b"x-amz-date", b"x-amz-content-sha256", b"host", b"x-amz-x"]), st.binary(max_size=40) | st.sampled_from([b"AWS4-HMAC-SHA256 Credential=FUZZ/20260102/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=" + b"0" * 64, b"20260102T030405Z", b"UNSIGNED-PAYLOAD"])), max_size=4),
    st.sampled_from([b"/", b"/icedb/events", b"/%ff", b"//", b"", b"/%", b"/\xff", b"/a%2F..%2Fb"]),
)  # fmt: skip
def test_a_signature_is_right_or_refused(query, headers, path):
    scope = {
        "method": "GET",
        "raw_path": path,
        "path": path.decode("latin-1"),
        "query_string": "&".join(f"{name}={value}" for name, value in query).encode(),
        "headers": headers,
    }
    try:
        request = parse_request(scope)
        claim = read_claim(request.signed)
        if claim is None:
            event("not signed")
            return
        check_time(claim, now_ms=1_767_322_000_000)
        check_signature(request.signed, claim, secret="s" * 40)
    except S3Error as error:
        event(error.code)
        assert 400 <= error.status < 500
        return
    raise AssertionError("nobody signed this")
