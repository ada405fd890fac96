"""The layout of a stack and its supervisor configuration: order, quoting, nothing of the user's own settings."""

import configparser
import os

import pytest
from icedb_local.stack_layout import StackLayout, StackPorts
from icedb_local.supervisor_config import Program, render_config
from icedb_log.errors import InvalidRequest


def parse(text):
    parser = configparser.RawConfigParser(inline_comment_prefixes=(" ;",))
    parser.read_string(text)
    return parser


def make_program(tmp_path, **changes):
    values = {"name": "one", "group": "all", "priority": 10, "command": ("run",), "directory": tmp_path, **changes}
    return Program(**values)


@pytest.mark.parametrize("store", ["local", "s3"])
def test_services_stop_before_the_servers_that_they_need(tmp_path, store):
    programs = StackLayout(tmp_path, store, StackPorts()).programs()
    by_name = {program.name: program for program in programs}
    expected = {"redis", "snapshot", "ingest", "merger", "janitor", "beat"} | ({"s3"} if store == "s3" else set())
    assert set(by_name) == expected
    servers = [program for program in programs if program.group == "servers"]
    services = [program for program in programs if program.group == "services"]
    assert max(program.priority for program in servers) < min(program.priority for program in services)
    assert by_name["beat"].priority > by_name["ingest"].priority > by_name["snapshot"].priority
    assert {program.name for program in programs if program.starts_at_once} == expected & {"redis", "s3"}


def test_every_service_has_a_port_of_its_own(tmp_path):
    programs = StackLayout(tmp_path, "local", StackPorts.find_free(), has_frontend=True).programs()
    ports = [program.env["ICEDB_METRICS_PORT"] for program in programs if program.env]
    assert len(ports) == len(set(ports)) == 8


def test_a_front_end_is_there_when_asked_for_and_stops_before_the_workers(tmp_path):
    ports = StackPorts.find_free()
    programs = StackLayout(tmp_path, "local", ports, has_frontend=True).programs()
    by_name = {program.name: program for program in programs}
    assert by_name["beat"].priority > by_name["frontend"].priority > by_name["ingest"].priority
    assert by_name["frontend"].command[-1] == "icedb_ingest.frontend"
    assert by_name["frontend"].env["ICEDB_FRONTEND_HTTP_PORT"] == str(ports.http)
    assert by_name["ingest-large"].command[-1] == "icedb_ingest.large"
    assert by_name["ingest-large"].priority == by_name["ingest"].priority
    assert by_name["enqueue"].command[-1] == "icedb_ingest.frontend.celery_worker"
    assert by_name["gateway"].command[-1] == "icedb_gateway"
    assert by_name["gateway"].env["ICEDB_GATEWAY_PORT"] == str(ports.gateway)
    shutdown_ms = int(by_name["frontend"].env["ICEDB_FRONTEND_SHUTDOWN_MS"])
    assert shutdown_ms < 1000 * by_name["frontend"].stop_wait_s


def test_the_environment_is_the_stacks_and_not_the_users(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "ICEDB_STORE", "s3://production/warehouse")
    monkeypatch.setitem(os.environ, "AWS_PROFILE", "production")
    monkeypatch.setitem(os.environ, "LANG", "C.UTF-8")
    env = StackLayout(tmp_path, "local", StackPorts(), {"ICEDB_FLUSH_INTERVAL_MS": "5"}).service_env()
    assert env["ICEDB_STORE"] == f"file://{tmp_path}/warehouse"
    assert "AWS_PROFILE" not in env
    assert env["LANG"] == "C.UTF-8"
    assert env["ICEDB_FLUSH_INTERVAL_MS"] == "5"
    assert env["ICEDB_RUN_DIR"] == str(tmp_path)


def test_the_secret_of_the_s3_server_is_not_shown(tmp_path):
    settings = StackLayout(tmp_path, "s3", StackPorts(s3=1234)).store_settings
    assert settings.s3 is not None
    assert settings.s3.endpoint_url == "http://127.0.0.1:1234"
    assert "local-only" not in repr(settings)


def test_a_command_survives_the_configuration(tmp_path):
    command = ("run it", "--format", "%d 100%", "", "a'b")
    program = make_program(tmp_path, command=command, env={"A": "50%"})
    parser = parse(render_config([program], run_dir=tmp_path, socket_path=tmp_path / "s.sock"))
    assert parser["program:one"]["command"].replace("%%", "%") == """'run it' --format '%d 100%' '' 'a'"'"'b'"""
    assert parser["program:one"]["environment"] == 'A="50%%"'
    assert parser["program:one"]["killasgroup"] == "true"
    assert parser["group:all"]["programs"] == "one"


@pytest.mark.parametrize("changes", [{"command": ("a ;b",)}, {"env": {"A": 'x"y'}}, {"command": ("a\nb",)}])
def test_what_cannot_be_quoted_is_refused(tmp_path, changes):
    with pytest.raises(InvalidRequest, match="cannot stand"):
        render_config([make_program(tmp_path, **changes)], run_dir=tmp_path, socket_path=tmp_path / "s.sock")
