from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.session import DELTA_PACKAGE, SparkSettings, resolve_jars, session_conf

JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]


def test_a_local_session_listens_on_the_loopback_only() -> None:
    conf = session_conf(SparkSettings(master="local[2]"), "x")
    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in session_conf(SparkSettings(master="spark://h:7077"), "x")


@pytest.mark.parametrize("master", ["spark://h:7077", "local-cluster[2,1,1024]"])
def test_executors_elsewhere_are_sent_the_jars(master: str) -> None:
    conf = session_conf(SparkSettings(master=master), "x", JARS)
    assert conf["spark.jars"] == "/jars/a.jar,/jars/b.jar"
    assert "spark.driver.extraClassPath" not in conf


def test_the_users_settings_win_and_their_class_path_stays() -> None:
    mine = {"spark.driver.extraClassPath": "/mine.jar", "spark.sql.session.timeZone": "Europe/Berlin"}
    conf = session_conf(SparkSettings(conf=mine), "x", JARS)
    assert conf["spark.driver.extraClassPath"] == "/mine.jar:/jars/a.jar:/jars/b.jar"
    assert conf["spark.sql.session.timeZone"] == "Europe/Berlin"


def test_resolved_jars_are_used_again_without_resolving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "jars" / "io.delta_delta-spark_4.1_2.13_4.4.0"
    folder.mkdir(parents=True)
    (folder / "x.jar").touch()
    monkeypatch.setenv("PATH", "/nowhere")
    assert resolve_jars([DELTA_PACKAGE], tmp_path) == [folder / "x.jar"]
