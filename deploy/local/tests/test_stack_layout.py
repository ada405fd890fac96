"""The layout of a stack and its supervisor configuration: order, quoting, nothing of the user's own settings."""

import configparser
import contextlib
import dataclasses
import os
import socket

import pytest
from icedb_local.ports import OTHER_PORTS, HeldPorts, find_free_ports, is_free
from icedb_local.stack import LocalStack, PortTaken
from icedb_local.stack_layout import StackLayout, StackPorts
from icedb_local.supervisor_config import Program, render_config
from icedb_log.errors import InvalidRequest, Unavailable


class StubHeldPorts(HeldPorts):
    """Nobody else's ports but those that are said to be taken, whatever runs on this machine."""

    def __init__(self, taken):
        super().__init__()
        self.taken = set(taken)

    def take(self, port):
        is_ours = port not in self.taken
        self.taken.add(port)
        return is_ours


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


@pytest.mark.parametrize("taken", [set(), {6379}, {8088, 9000, 9108}])
def test_ports_are_the_usual_ones_where_they_are_free(taken):
    usual = dataclasses.asdict(StackPorts())
    chosen = dataclasses.asdict(StackPorts.choose(StubHeldPorts(taken)))
    assert {usual[name] for name, port in chosen.items() if port != usual[name]} == taken
    assert len(set(chosen.values())) == len(chosen)
    assert taken.isdisjoint(chosen.values())


def test_a_chosen_base_is_where_all_ports_begin():
    held = StubHeldPorts({7114})
    assert list(dataclasses.asdict(StackPorts.choose(held, 7000)).values()) == list(range(7000, 7017))
    with pytest.raises(InvalidRequest, match=r"port 7114 \(ingest_large_metrics\) is taken"):
        StackPorts.choose(held, 7100)
    for base in (0, 80, 65523):
        with pytest.raises(InvalidRequest, match="choose one from 1024 to 65519"):
            StackPorts.choose(held, base)


def test_two_stacks_that_start_at_once_choose_different_ports(monkeypatch):
    """Nobody listens yet: what one has chosen, the other is not given, until the first has stopped."""
    monkeypatch.setattr("icedb_local.ports.is_free", lambda _: True)
    with HeldPorts() as other:
        (base, *_) = find_free_ports(1)
        theirs = other.take(base), other.take_other()
        with HeldPorts() as ours:
            assert theirs[0]
            assert not ours.take(base)
            assert ours.take_other() not in (base, theirs[1])
            other.release()
            assert ours.take(base)


def test_a_port_on_which_somebody_listens_is_not_held():
    with socket.socket() as server, HeldPorts() as held:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not held.take(port)
        server.close()
        assert held.take(port)


def test_a_port_that_is_drawn_is_given_once(monkeypatch):
    drawn = iter([20_001, 20_001, 20_002])
    monkeypatch.setattr("icedb_local.ports.find_free_ports", lambda _: (next(drawn),))
    monkeypatch.setattr("icedb_local.ports.is_free", lambda _: True)
    with HeldPorts() as ours, HeldPorts() as theirs:
        assert [ours.draw(), theirs.draw()] == [20_001, 20_002]


def test_each_port_is_one_programs(tmp_path):
    ports = StackPorts()
    programs = StackLayout(tmp_path, "s3", ports, has_frontend=True, has_console=True).programs()
    found = [port for program in programs for port in ports.of(program.name).values()]
    assert sorted(found) == sorted(dataclasses.asdict(ports).values())
    assert ports.of("frontend").keys() == {"http", "grpc", "frontend_metrics"}


def test_a_stack_moves_when_a_port_is_lost_while_it_starts(tmp_path, monkeypatch):
    tried = []

    def start(stack):
        tried.append(stack.layout.ports.redis)
        if len(tried) < 3:
            raise PortTaken("port 6379 (redis) was taken while redis started")

    monkeypatch.setattr(LocalStack, "_start", start)
    layout = StackLayout(tmp_path, "local", StackPorts())
    with pytest.raises(PortTaken):
        LocalStack(layout).start()
    fresh = iter(range(7000, 7100))
    stack = LocalStack(layout, choose_ports=lambda _: StackPorts(redis=next(fresh)))
    stack.start()
    assert tried == [6379, 7000, 7001]
    assert stack.layout.redis_url == "redis://127.0.0.1:7001/0"


def test_a_stack_holds_its_ports_until_it_has_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalStack, "_start", lambda _: None)
    monkeypatch.setattr("icedb_local.ports.is_free", lambda _: True)
    layout = StackLayout(tmp_path, "local", StackPorts())
    stack = LocalStack(layout, choose_ports=lambda held: StackPorts(redis=held.take_other()))
    with stack, HeldPorts() as others:
        assert not others.take(stack.layout.ports.redis)
        stack.stop()
        assert others.take(stack.layout.ports.redis)


@pytest.mark.parametrize(
    ("state", "own", "is_lost"),
    [
        ("RUNNING", set(), True),
        ("BACKOFF", set(), True),
        ("RUNNING", {9106}, False),
        ("RUNNING", None, False),
        ("STARTING", set(), False),
    ],
    ids=["it runs without its port", "it gave up", "it has its port", "nobody can say", "it has not begun"],
)
def test_a_port_is_lost_where_somebody_else_listens(tmp_path, monkeypatch, state, own, is_lost):
    stack = LocalStack(StackLayout(tmp_path, "local", StackPorts(), has_frontend=True))
    monkeypatch.setattr("icedb_local.stack.is_listening", lambda port: port == 9106)
    monkeypatch.setattr("icedb_local.stack.is_free", lambda port: port != 9106)
    monkeypatch.setattr(stack, "_listening_ports", lambda _: own)
    monkeypatch.setattr(stack, "_states", lambda: {"enqueue": state})
    monkeypatch.setattr(stack, "is_alive", lambda: True)
    if state == "RUNNING":
        stack._check_progress(["enqueue"], deadline_ms=2**62)  # once says nothing: its processes may have just changed
    with pytest.raises(PortTaken, match="enqueue lost port 9106") if is_lost else contextlib.nullcontext():
        stack._check_progress(["enqueue"], deadline_ms=2**62)


def test_a_port_is_lost_where_a_connection_begins(tmp_path, monkeypatch):
    """The usual ports of gRPC are among those that the system gives to connections: nobody listens there then."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as connection:
        connection.connect(server.getsockname())
        ports = dataclasses.replace(StackPorts.find_free(), grpc=connection.getsockname()[1])
        stack = LocalStack(StackLayout(tmp_path, "local", ports, has_frontend=True))
        monkeypatch.setattr(stack, "is_alive", lambda: True)
        monkeypatch.setattr(stack, "_listening_ports", lambda _: set())
        monkeypatch.setattr(stack, "_states", lambda: {"frontend": "FATAL"})
        with pytest.raises(PortTaken, match=f"frontend lost port {ports.grpc}"):
            stack._check_progress(["frontend"], deadline_ms=2**62)


def test_free_ports_are_none_that_connections_are_given():
    ports = find_free_ports(20)
    assert len(set(ports)) == 20
    assert set(ports) <= set(OTHER_PORTS)
    with socket.create_server(("127.0.0.1", ports[0])):
        assert not is_free(ports[0])


def test_free_ports_are_looked_for_in_all_of_their_range(monkeypatch):
    monkeypatch.setattr("icedb_local.ports.is_free", lambda port: port in (20_001, 32_767))
    assert sorted(find_free_ports(2)) == [20_001, 32_767]
    with pytest.raises(Unavailable, match="no port from 20000 to 32767 is free"):
        find_free_ports(3)


def test_a_front_end_is_there_when_asked_for_and_stops_before_the_workers(tmp_path):
    ports = StackPorts.find_free()
    layout = StackLayout(tmp_path, "local", ports, has_frontend=True)
    by_name = {program.name: program for program in layout.programs()}
    assert by_name["beat"].priority > by_name["frontend"].priority > by_name["ingest"].priority
    assert by_name["frontend"].command[-1] == "icedb_ingest.frontend"
    assert by_name["frontend"].env["ICEDB_FRONTEND_HTTP_PORT"] == str(ports.http)
    assert by_name["ingest-large"].command[-1] == "icedb_ingest.large"
    assert by_name["ingest-large"].priority == by_name["ingest"].priority
    assert by_name["enqueue"].command[-1] == "icedb_ingest.frontend.celery_worker"
    assert by_name["gateway"].command[-1] == "icedb_gateway"
    assert by_name["gateway"].env["ICEDB_GATEWAY_PORT"] == str(ports.gateway)
    assert by_name["gateway"].env["ICEDB_GATEWAY_ICEBERG_PORT"] == str(ports.gateway_iceberg)
    assert "console" not in by_name
    assert int(layout.service_env()["ICEDB_DRAIN_MS"]) < 1000 * by_name["frontend"].stop_wait_s


def test_a_console_is_there_when_asked_for(tmp_path):
    layout = StackLayout(tmp_path, "local", StackPorts.find_free(), has_frontend=True, has_console=True)
    (console,) = (program for program in layout.programs() if program.name == "console")
    assert console.command[-1] == "icedb_console"
    assert console.env["ICEDB_CONSOLE_PORT"] == str(layout.ports.console)
    assert console.env["ICEDB_METRICS_PORT"] == str(layout.ports.console_metrics)
    assert layout.console_url.endswith(f":{layout.ports.console}")
    assert int(layout.service_env()["ICEDB_DRAIN_MS"]) < 1000 * console.stop_wait_s


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
