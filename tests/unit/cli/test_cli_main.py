"""How the command ends: its exit codes, its one message per error, its help."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from plugins.cli import Cli

from penstock.cli import main as entry
from penstock.errors import ConfigError, ErrorKind, PenstockError, SourceError

COMMANDS = ("init", "check", "run", "status", "setup", "demo")
GROUPS = ("tables", "log")
CONFIG = """\
pipeline:
  id: shop
  publication_name: shop_pub
  pg_connection: {host: localhost, name: shop, username: penstock, password: "${SHOP_PASSWORD}"}
destination:
  memory: {}
"""


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as end:
        entry.main(arguments)
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


def is_one_message(stderr: str) -> bool:
    """Whether it is `error: …` and an indented remedy, and no traceback."""
    return re.fullmatch(r"error: (?s:(?!\nerror:).)*\n    \S.*\n", stderr) is not None and "Traceback" not in stderr


def test_help_names_every_command_and_where_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ended(capsys, "--help")
    assert code == 0
    assert all(f"\n  {command} " in out for command in COMMANDS + GROUPS)
    assert "penstock demo" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_by_example_and_says_what_it_needs(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ended(capsys, command, "--help")
    assert code == 0
    assert re.search(rf"Example:\s+penstock {command}", out)
    assert "Needs:" in out


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ended(capsys, "--version")
    assert code == 0
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\S*\n", out)


@pytest.mark.parametrize("arguments", [["bogus"], ["run", "--bogus"], ["status", "--output", "xml"], []])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ended(capsys, *arguments)
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["check", "run", "status"])
def test_a_missing_file_is_one_error_with_a_remedy(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nowhere.yaml"
    code, out, err = ended(capsys, command, "--config", str(path))
    assert (code, out) == (2, "")
    assert is_one_message(err)
    assert f"there is no file {path}" in err
    assert "penstock init" in err


def test_no_file_named_and_none_there_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = ended(capsys, "run")
    assert code == 2
    assert is_one_message(err)
    assert "there is no penstock.yaml" in err


def test_a_typo_in_a_field_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(CONFIG.replace("publication_name", "publication_nmae"))
    code, _, err = ended(capsys, "run", "-c", str(path))
    assert code == 2
    assert is_one_message(err)
    assert "pipeline.publication_nmae" in err
    assert "penstock.yaml:3" in err


def test_a_missing_variable_is_named_and_no_value_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    path = tmp_path / "penstock.yaml"
    path.write_text(CONFIG)
    code, _, err = ended(capsys, "check", "-c", str(path))
    assert code == 2
    assert is_one_message(err)
    assert "SHOP_PASSWORD" in err
    assert "pg_connection.password" in err


def test_init_writes_a_file_that_only_needs_filling_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    code, out, _ = ended(capsys, "init", str(path))
    assert code == 0
    assert yaml.safe_load(path.read_text())["pipeline"]["publication_name"]
    assert f"penstock check -c {path}" in out


def test_init_refuses_to_overwrite_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("precious")
    code, _, err = ended(capsys, "init", str(path))
    assert (code, path.read_text()) == (2, "precious")
    assert is_one_message(err)
    assert "--force" in err
    assert ended(capsys, "init", str(path), "--force")[0] == 0
    assert path.read_text() != "precious"


def test_init_in_a_folder_that_is_not_there_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ended(capsys, "init", str(tmp_path / "no" / "x.yaml"))
    assert code == 2
    assert is_one_message(err)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("the file is wrong"), 2),
        (SourceError("the slot is gone", kind=ErrorKind.SLOT_MISSING), 1),
        (ExceptionGroup("both", [PenstockError("one"), PenstockError("one")]), 1),
        (ValueError("a secret"), 1),
    ],
)
def test_every_error_is_one_message_and_its_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry._explain(error) == code
    err = capsys.readouterr().err
    assert is_one_message(err)
    assert "secret" not in err


def fail(*_: object, **__: object) -> None:
    raise ValueError("a row value")


def test_debug_shows_where_an_unexpected_error_came_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.cli.init.write_config", fail)
    code, _, err = ended(capsys, "init")
    assert code == 1
    assert "--debug" in err
    assert "a row value" not in err
    code, _, err = ended(capsys, "init", "--debug")
    assert code == 1
    assert "ValueError: a row value" in err


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("penstock.cli.init.write_config", interrupt)
    code, _, err = ended(capsys, "init")
    assert code == 130
    assert "Traceback" not in err


def test_a_wrong_failpoint_is_a_configuration_error(cli: Cli) -> None:
    (cli.folder / "penstock.yaml").write_text(CONFIG)
    done = cli("run", env={"PENSTOCK_FAILPOINTS": "nonsense", "SHOP_PASSWORD": "x"})
    assert done.code == 2
    assert "PENSTOCK_FAILPOINTS" in done.stderr
    assert is_one_message(done.stderr)


def test_the_installed_program_is_this_one() -> None:
    done = subprocess.run([str(Path(sys.executable).with_name("penstock")), "--version"], check=False)
    assert done.returncode == 0
