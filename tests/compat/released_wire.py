"""What services and clients of different releases say to each other: gRPC messages and Celery tasks, as plain facts.

``python tests/compat/released_wire.py`` adds what this release has to ``golden/wire.json``, and refuses if something is changed or
gone that a release had: older clients and workers still say it. Adding is fine.
"""

import inspect
import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

from celery import Celery
from icedb_ingest.tasks import register_tasks as register_ingest
from icedb_janitor.tasks import register_tasks as register_janitor
from icedb_log.names import TASKS
from icedb_merger.tasks import register_tasks as register_merger
from icedb_proto import ingest_pb2, snapshot_pb2

STORED = Path(__file__).with_name("golden") / "wire.json"


def read_wire():
    """Return one line of facts for each thing that goes over a wire, by its name."""
    return {**read_protos(), **read_tasks()}


def read_protos():
    facts = {}
    for file in (ingest_pb2.DESCRIPTOR, snapshot_pb2.DESCRIPTOR):
        for message in file.message_types_by_name.values():
            _read_message(message, facts)
        for enum in file.enum_types_by_name.values():
            _read_enum(enum, facts)
        for service in file.services_by_name.values():
            for rpc in service.methods:
                takes = f"{'stream ' if rpc.client_streaming else ''}{rpc.input_type.full_name}"
                gives = f"{'stream ' if rpc.server_streaming else ''}{rpc.output_type.full_name}"
                facts[f"rpc {rpc.full_name}"] = f"takes {takes}, gives {gives}"
    return facts


def _read_message(message, facts):
    for field in message.fields:
        kind = field.message_type or field.enum_type
        presence = "repeated" if field.is_repeated else "presence" if field.has_presence else "no presence"
        oneof = field.containing_oneof
        group = f", one of {oneof.name}" if oneof is not None and not oneof.name.startswith("_") else ""
        type_name = kind.full_name if kind is not None else f"type {field.type}"
        facts[f"field {field.full_name}"] = f"number {field.number}, {type_name}, {presence}{group}"
    for nested in message.nested_types:
        _read_message(nested, facts)
    for enum in message.enum_types:
        _read_enum(enum, facts)


def _read_enum(enum, facts):
    for value in enum.values:
        facts[f"value {enum.full_name}.{value.name}"] = f"number {value.number}"


def read_tasks():
    """Return the arguments of every task that a worker of this release takes."""
    app = Celery("facts")
    context = MagicMock()
    for register in (register_ingest, register_merger, register_janitor):
        register(app, context, settings=MagicMock(task_time_limit_ms=3_600_000), metrics=MagicMock())
    facts = {f"task {name}": f"queue {queue}" for name, queue in TASKS.items()}
    for name, task in app.tasks.items():
        if name not in TASKS:
            continue
        for place, parameter in enumerate(task.signature_of_run.parameters.values()):
            needed = "needed" if parameter.default is inspect.Parameter.empty else "may be left out"
            facts[f"argument {name}.{parameter.name}"] = f"place {place}, {parameter.annotation}, {needed}"
    return facts


def find_breaks(stored, now):
    """Return, in words, each thing that an older client or worker would stumble over."""
    breaks = [
        f"{name} is gone" if name not in now else f"{name}: was «{was}», is «{now[name]}»"
        for name, was in stored.items()
        if now.get(name) != was and not _is_loosened(was, now.get(name))
    ]
    tasks = {name.removeprefix("task ") for name in stored if name.startswith("task ")}
    breaks += [
        f"{name} is new and needed: messages of older releases do not have it; give it a default"
        for name, fact in now.items()
        if name not in stored
        and fact.endswith(", needed")
        and name.removeprefix("argument ").rpartition(".")[0] in tasks
    ]
    return breaks


def _is_loosened(was, now):
    return now is not None and was.endswith(", needed") and now == was.replace(", needed", ", may be left out")


if __name__ == "__main__":
    before = json.loads(STORED.read_text()) if STORED.exists() else {}
    current = read_wire()
    if problems := find_breaks(before, current):
        sys.exit("\n".join(problems))
    STORED.write_text(f"{json.dumps({**before, **current}, indent=1, sort_keys=True)}\n")
