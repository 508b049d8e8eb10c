from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock.destinations.delta.action import with_vector
from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.log import Member, TableLog, TableState
from penstock.errors import DestinationError


def add(path: str, vector: str | None = None, **more: Any) -> dict[str, Any]:
    found = {} if vector is None else {"deletionVector": {"storageType": "u", "pathOrInlineDv": vector, "offset": 1}}
    return {"add": {"path": path, "partitionValues": {}, "size": 1, "dataChange": True, **found, **more}}


def remove(action: dict[str, Any]) -> dict[str, Any]:
    return {"remove": action["add"]}


def new_log(path: Path) -> TableLog:
    (path / "_delta_log").mkdir(parents=True, exist_ok=True)
    return TableLog(TableFolder(str(path)))


def entry(path: Path, version: int, *actions: dict[str, Any]) -> None:
    text = "\n".join(json.dumps(action) for action in actions)
    (path / "_delta_log" / f"{version:020d}.json").write_text(text)


def paths(state: TableState | None) -> list[str]:
    assert state is not None
    return sorted(path for path, _vector in state.members)


def test_a_folder_without_a_log_is_no_table(tmp_path: Path) -> None:
    assert TableLog(TableFolder(str(tmp_path / "nothing"))).refresh() is None
    assert new_log(tmp_path).refresh() is None


def test_the_state_is_what_the_actions_leave(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    entry(tmp_path, 0, {"protocol": {"p": 1}}, {"metaData": {"m": 1}}, add("a"), add("b"))
    entry(tmp_path, 1, {"txn": {"appId": "x", "version": 7}}, remove(add("a")), add("c"))
    state = log.refresh()
    assert state is not None
    assert (state.version, paths(state), state.transactions) == (1, ["b", "c"], {"x": 7})
    assert (state.protocol, state.metadata) == ({"p": 1}, {"m": 1})


def test_a_removal_may_be_without_a_date(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    entry(tmp_path, 0, add("a"), add("b"), add("c"))
    undated = {"remove": {"path": "a", "deletionTimestamp": None}}, {"remove": {"path": "b"}}
    entry(tmp_path, 1, *undated, {"remove": {"path": "c", "deletionTimestamp": 7}})
    entry(tmp_path, 2, *undated)
    state = log.refresh()
    assert state is not None
    assert (paths(state), state.removed) == ([], {"a": 0, "b": 0, "c": 7})


def test_a_file_is_another_one_with_another_vector(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    entry(tmp_path, 0, add("a"))
    entry(tmp_path, 1, add("a", "v1"), remove(add("a")))
    entry(tmp_path, 2, remove(add("a")))
    state = log.refresh()
    assert state is not None
    assert list(state.members) == [("a", "uv1@1")]


def test_only_what_is_new_is_read_again(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for version in range(3):
        entry(tmp_path, version, add(f"f{version}"))
    log.refresh()
    for version in range(2):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    entry(tmp_path, 3, add("f3"))
    assert paths(log.refresh()) == ["f0", "f1", "f2", "f3"]


def test_another_table_in_the_same_place_is_noticed(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    entry(tmp_path, 0, add("a"))
    entry(tmp_path, 1, add("b"))
    log.refresh()
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    entry(tmp_path, 0, add("c"))
    assert paths(log.refresh()) == ["c"]
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    assert log.refresh() is None


def test_a_damaged_entry_leaves_nothing_half_read(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    entry(tmp_path, 0, add("a"))
    log.refresh()
    damaged = tmp_path / "_delta_log" / f"{1:020d}.json"
    damaged.write_text(json.dumps(remove(add("a"))) + '\n{"add":')
    with pytest.raises(DestinationError, match="Entry 1 "):
        log.refresh()
    damaged.unlink()
    assert paths(log.refresh()) == ["a"]


def test_a_log_with_a_gap_is_refused(tmp_path: Path) -> None:
    new_log(tmp_path)
    entry(tmp_path, 3, add("a"))
    with pytest.raises(DestinationError, match="lacks its entries before version 3"):
        new_log(tmp_path).refresh()


def test_of_two_writers_on_one_state_one_commits(tmp_path: Path) -> None:
    new_log(tmp_path)
    entry(tmp_path, 0, add("a"))
    logs = [new_log(tmp_path) for _ in range(8)]
    states = [log.refresh() for log in logs]
    won: list[int] = []

    def write(number: int) -> None:
        state = states[number]
        assert state is not None
        if logs[number].commit(state, [add(f"by {number}")]):
            won.append(number)

    threads = [threading.Thread(target=write, args=[number]) for number in range(len(logs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = won
    assert paths(states[winner]) == paths(new_log(tmp_path).refresh()) == ["a", f"by {winner}"]
    loser = (winner + 1) % len(logs)
    assert paths(states[loser]) == ["a"]
    assert paths(logs[loser].refresh()) == ["a", f"by {winner}"]
    assert sorted(new_log(tmp_path).folder.names("_delta_log")) == [f"{version:020d}.json" for version in range(2)]


def test_a_commit_goes_on_from_the_one_before(tmp_path: Path) -> None:
    new_log(tmp_path)
    entry(tmp_path, 0, add("a"))
    log = new_log(tmp_path)
    for version in range(1, 4):
        state = log.refresh()
        assert state is not None
        assert log.commit(state, [add(f"f{version}")])
        assert state.version == version
    assert paths(new_log(tmp_path).refresh()) == ["a", "f1", "f2", "f3"]


def test_a_file_that_fails_half_way_is_not_left_behind(tmp_path: Path) -> None:
    folder = TableFolder(str(tmp_path))
    with pytest.raises(UnicodeEncodeError), folder.new_file("x") as new:
        new.file.write("\ud800".encode())
    assert folder.names("") == []


@pytest.mark.parametrize(
    ("logged", "path"),
    [
        ("part-1.parquet", "/lake/t/part-1.parquet"),
        ("a%20b/%C3%BC.parquet", "/lake/t/a b/ü.parquet"),
        ("/other/x.parquet", "/other/x.parquet"),
        ("file:///other/a%20b.parquet", "/other/a b.parquet"),
        ("file:/other/x.parquet", "/other/x.parquet"),
    ],
)
def test_paths_in_the_log_are_urls(logged: str, path: str) -> None:
    assert TableFolder("/lake/t").path(logged) == path


def test_files_outside_the_folder_are_not_logged() -> None:
    assert TableFolder("/lake/t").logged("file:///lake/t/a b") == "a%20b"
    with pytest.raises(ValueError, match="not below"):
        TableFolder("/lake/t").logged("/lake/tt/a")


def test_statistics_keep_every_digit_when_a_file_gets_a_vector() -> None:
    stats = '{"numRecords":3,"minValues":{"d":1234567890123456789012345678.0123456789,"t":"x"},"tightBounds":true}'
    again = with_vector(Member({"path": "a", "stats": stats}), {"storageType": "i"}, 3)["add"]["stats"]
    assert '"d":1234567890123456789012345678.0123456789' in again
    assert json.loads(again)["tightBounds"] is False


def test_a_checkpoint_holds_what_its_entries_made(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    entry(
        tmp_path,
        0,
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors"],
            }
        },
        {
            "metaData": {
                "id": "6c1fb4d0-0000-4000-8000-000000000000",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": {"delta.enableDeletionVectors": "true"},
                "createdTime": 1,
            }
        },
        {"txn": {"appId": "x", "version": 5, "lastUpdated": 1}},
        add("a", stats='{"numRecords":9}', modificationTime=1),
    )
    vector = {"storageType": "i", "pathOrInlineDv": "abcde", "sizeInBytes": 3, "cardinality": 1}
    gone = {"remove": {"path": "a", "deletionTimestamp": 2, "dataChange": True}}
    entry(tmp_path, 1, gone, add("a", stats='{"numRecords":9}', modificationTime=1, deletionVector=vector))
    plain = log.refresh()
    DeltaTable(tmp_path).create_checkpoint()
    for version in range(2):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    state = new_log(tmp_path).refresh()
    assert state is not None
    assert plain is not None
    assert (state.version, state.transactions) == (1, {"x": 5})
    [member] = state.members.values()
    assert member.add["deletionVector"] == vector
    assert member.add["partitionValues"] == {}
    assert member.rows == 9
    assert state.metadata["configuration"] == plain.metadata["configuration"]
    assert state.protocol["writerFeatures"] == plain.protocol["writerFeatures"]
