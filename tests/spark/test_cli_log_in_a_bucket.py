"""`penstock log` over a log in a bucket, which the configuration file knows the keys of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from plugins.s3 import Bucket
from plugins.written_log import Did, LogPlace, WrittenLog, orders, row

from penstock.changelog.folder import Folder
from penstock.changelog.visitor import open_log
from penstock.cli import main as program
from penstock.cli.log_tail import ChangePrinter, NewestNames, Tail
from penstock.model.policy import ValuePolicies

pytestmark = pytest.mark.spark

ORDERS = orders()


@pytest.fixture
def log_place(bucket: Bucket) -> LogPlace:
    return LogPlace(bucket.root / "log", Folder(f"s3://{bucket.name}/log", bucket.settings))


@pytest.fixture
def config(bucket: Bucket, tmp_path: Path) -> Path:
    connection = {"host": "localhost", "port": 1, "name": "shop", "username": "shop"}
    place = {"location": f"s3://{bucket.name}/log", "s3": bucket.config}
    pipeline = {"id": "shop", "publication_name": "shop", "pg_connection": connection, "log": place}
    path = tmp_path / "penstock.yaml"
    path.write_text(yaml.safe_dump({"pipeline": pipeline, "destination": {"memory": {}}}))
    return path


def told(capsys: pytest.CaptureFixture[str], config: Path, *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        program.main(["log", *arguments, "--config", str(config), "--output", "json"])
    captured = capsys.readouterr()
    assert (end.value.code, captured.err) == (0, "")
    return captured.out


def types(lines: str) -> list[str]:
    return [json.loads(line)["type"] for line in lines.splitlines()]


def test_entries_and_changes_are_shown_and_checked(
    written_log: WrittenLog, config: Path, capsys: pytest.CaptureFixture[str], bucket: Bucket
) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)), Did(ORDERS, "I", row(2)))
    written_log.commit(Did(ORDERS, "D", row(1)))
    listed = json.loads(told(capsys, config, "ls"))
    assert (listed["log"], listed["total_entries"]) == (f"s3://{bucket.name}/log", 2)
    assert [entry["tables"] for entry in listed["entries"]] == [["public.orders"]] * 2
    assert types(told(capsys, config, "show", "2")) == ["begin", "delete", "commit"]
    assert json.loads(told(capsys, config, "verify"))["damaged"] == []


def test_new_changes_are_followed(written_log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    reader = open_log(written_log.folder)
    printer = ChangePrinter(NewestNames(written_log.folder), as_json=True)
    tail = Tail(reader, reader.end_lsn, None, ValuePolicies(), printer)
    tail.step()
    assert printer.printed == 0
    written_log.commit(Did(ORDERS, "I", row(7)))
    tail.step()
    assert types(capsys.readouterr().out) == ["begin", "insert", "commit"]


def test_a_bucket_that_refuses_is_named_with_what_to_do(
    written_log: WrittenLog, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    config.write_text(config.read_text().replace("test-secret", "wrong-secret"))
    with pytest.raises(SystemExit) as end:
        program.main(["log", "ls", "--config", str(config)])
    captured = capsys.readouterr()
    assert (end.value.code, captured.out) == (1, "")
    assert str(written_log.folder) in captured.err
    assert "wrong-secret" not in captured.err
