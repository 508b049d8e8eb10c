from __future__ import annotations

import importlib.util
import logging
import subprocess
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark import java


def make_java(home: Path, version: str) -> Path:
    """A `java` that answers only what it is asked here: which version it is."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("25-ea", 25)])
def test_every_way_of_printing_a_version_is_read(tmp_path: Path, version: str, major: int) -> None:
    assert java.java_version(make_java(tmp_path / "jdk", version)) == major


def test_a_home_without_java_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(tmp_path) is None


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "home", "21.0.1"), make_java(tmp_path / "other", "17.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert java.find_java_home(environ, cache_dir=tmp_path) == home


def test_a_link_on_the_path_leads_to_its_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert java.find_java_home({"PATH": str(links)}, cache_dir=tmp_path) == home


@pytest.mark.parametrize("version", ["11.0.2", "25"])
def test_an_unsuitable_java_gives_way_to_the_wheel_and_the_log_says_so(
    tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    unsuitable = make_java(tmp_path / "jdk", version)
    with caplog.at_level(logging.INFO, logger="penstock.spark.java"):
        home = java.find_java_home({"JAVA_HOME": str(unsuitable), "PATH": "/nowhere"}, cache_dir=tmp_path / "cache")
    assert home.is_relative_to(tmp_path / "cache")
    assert java.java_version(home) == 21
    assert str(unsuitable) in caplog.text


@pytest.mark.parametrize(
    "arguments", [["--add-modules=jdk.incubator.vector"], ["--add-modules", "jdk.incubator.vector"]]
)
def test_the_wheels_java_starts_although_asked_for_a_module_it_lacks(tmp_path: Path, arguments: list[str]) -> None:
    home = java.find_java_home({"PATH": "/nowhere"}, cache_dir=tmp_path)
    command = [str(home / "bin" / "java"), "-Da=b c", *arguments, "--add-modules", "java.sql", "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_launcher_is_written_once(tmp_path: Path) -> None:
    first = java.find_java_home({"PATH": "/nowhere"}, cache_dir=tmp_path) / "bin" / "java"
    written = first.stat().st_mtime_ns
    assert java.find_java_home({"PATH": "/nowhere"}, cache_dir=tmp_path) / "bin" / "java" == first
    assert first.stat().st_mtime_ns == written


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError) as raised:
        java.find_java_home({"PATH": "/nowhere"}, cache_dir=tmp_path)
    assert "penstock[java]" in raised.value.remedy
