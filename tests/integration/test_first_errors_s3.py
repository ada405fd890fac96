"""What beginners do wrong with S3, and the one line that they read: each with its exit code."""

import contextlib
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from client_rig import cli_env, said_by_icedb  # noqa: F401 - fixtures
from processes import free_port

pytestmark = pytest.mark.s3

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
UNAVAILABLE = 4
PAGE = Path(__file__).parents[2] / "docs" / "first-errors.md"


@pytest.fixture
def fail(cli_env, said_by_icedb, tmp_path):  # noqa: F811 - the fixtures
    """Lists the tables of a warehouse that cannot be read; returns the one line that the command says."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        cli_env.setenv(name, str(tmp_path / "nothing"))
    cli_env.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", *KEYS):
        cli_env.delenv(name, raising=False)

    def fail(endpoint, bucket, *, has_keys=True):
        cli_env.setenv("ICEDB_STORE", f"s3://{bucket}/first")
        cli_env.setenv("ICEDB_S3_ENDPOINT", endpoint)
        cli_env.setenv("ICEDB_S3_REGION", "us-east-1")
        for name in KEYS if has_keys else ():
            cli_env.setenv(name, "dev")
        shown = said_by_icedb("table", "list", code=UNAVAILABLE)
        assert shown.out == ""
        (line,) = shown.err.splitlines()
        return line

    return fail


def test_a_bucket_that_is_missing(fail, s3_server):
    line = fail(s3_server.endpoint_url, "nowhere")
    place = f"bucket nowhere at {s3_server.endpoint_url}"
    assert line.endswith(f"{place}: no such bucket; create it, or correct ICEDB_STORE")


def test_no_credentials(fail, s3_server):
    line = fail(s3_server.endpoint_url, s3_server.bucket, has_keys=False)
    assert line.endswith("no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")


def test_an_endpoint_where_nobody_listens(fail):
    endpoint = f"http://127.0.0.1:{free_port()}"
    line = fail(endpoint, "lake")
    assert line.startswith(
        f"error: bucket lake at {endpoint}: cannot connect; check that it runs, and ICEDB_S3_ENDPOINT"
    )


@pytest.fixture
def answering():
    """Returns a function that starts a server, which answers everything with one status and S3's name of an error."""
    with contextlib.ExitStack() as stack:

        def start(status, code):
            body = f"<Error><Code>{code}</Code><Message>words</Message></Error>".encode()

            class Handler(BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

                def log_message(self, *_):
                    pass

            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return f"http://127.0.0.1:{server.server_port}"

        yield start


ANSWERS = [
    (403, "AccessDenied", "access denied (AccessDenied words); check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"),
    (403, "SignatureDoesNotMatch", "access denied (SignatureDoesNotMatch words); check AWS_ACCESS_KEY_ID"),
    (403, "RequestTimeTooSkewed", "this host's clock and the store's are too far apart"),
    (400, "AuthorizationHeaderMalformed", "the bucket lies in another region"),
]


@pytest.mark.parametrize(("status", "code", "said"), ANSWERS, ids=[code for _, code, _ in ANSWERS])
def test_a_store_that_refuses_says_what_to_set_right(fail, answering, status, code, said):
    assert said in fail(answering(status, code), "lake")


@pytest.fixture
def no_tls():
    """A server that answers in plain words, and how often it was asked."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        asked.append(connection.recv(4096)[:1])
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                        connection.shutdown(socket.SHUT_WR)
                        with contextlib.suppress(OSError):
                            while connection.recv(4096):  # until the client has read it: a reset would come before
                                pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"https://127.0.0.1:{server.getsockname()[1]}", asked
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def test_a_server_without_tls_is_asked_once_and_named(fail, no_tls):
    endpoint, asked = no_tls
    assert f"bucket lake at {endpoint}: no TLS is spoken there; make it http:// in ICEDB_S3_ENDPOINT" in fail(
        endpoint, "lake"
    )
    assert asked == [b"\x16"], "nobody waits for tries that must fail"


def test_the_page_quotes_what_is_printed_of_stores(fail, answering, no_tls, s3_server):
    printed = [fail(s3_server.endpoint_url, s3_server.bucket, has_keys=False)]  # before others set them
    printed += [fail(answering(status, code), "lake") for status, code, _ in ANSWERS]
    printed += [fail(no_tls[0], "lake"), fail(s3_server.endpoint_url, "nowhere")]
    section = PAGE.read_text(encoding="utf-8").partition("## A store that refuses")[2].partition("\n## ")[0]
    quotes = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(quotes) >= len(ANSWERS)
    plain = "\n".join(printed)
    assert [quote for quote in quotes if not re.search(re.escape(quote).replace("…", ".*"), plain)] == []
