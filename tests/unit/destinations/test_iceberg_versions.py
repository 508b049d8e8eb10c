"""Which versions of an Iceberg table nobody would miss."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.destinations.iceberg.versions import superfluous_versions


def version(id_: int, parent: int | None, **summary: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in summary.items()}
    found = {"snapshot-id": id_, "timestamp-ms": 1000 * id_, "summary": {"operation": "append", **named}}
    return found if parent is None else {**found, "parent-snapshot-id": parent}


def metadata(*versions: dict[str, Any], current: int | None = None, **references: int) -> dict[str, Any]:
    current = versions[-1]["snapshot-id"] if current is None else current
    refs = {name: {"snapshot-id": id_} for name, id_ in {"main": current, **references}.items()}
    return {"current-snapshot-id": current, "snapshots": list(versions), "refs": refs}


def chain(*removals: int, length: int = 6) -> list[dict[str, Any]]:
    return [
        version(n, n - 1 or None, **({"deleted_data_files": "2"} if n in removals else {})) for n in range(1, length)
    ]


def test_the_last_version_before_files_were_taken_out_stays() -> None:
    assert superfluous_versions(metadata(*chain(3)), 10_000) == [4, 3, 1]
    removed = [version(1, None), version(2, 1), version(3, 2, removed_delete_files="1")]
    assert superfluous_versions(metadata(*removed), 10_000) == [1]


def test_young_versions_the_present_one_and_those_with_names_stay() -> None:
    assert superfluous_versions(metadata(*chain()), 3000) == [2, 1]
    assert superfluous_versions(metadata(*chain(), audit=2), 10_000) == [4, 3, 1]


def test_what_is_no_ancestor_or_beyond_a_gap_stays() -> None:
    rolled_back = metadata(*chain(), current=3)
    assert superfluous_versions(rolled_back, 10_000) == [2, 1]
    with_gap = [each for each in chain() if each["snapshot-id"] != 3]
    assert superfluous_versions(metadata(*with_gap), 10_000) == [4]


def test_a_table_without_versions_has_none_to_forget() -> None:
    assert superfluous_versions({"current-snapshot-id": -1, "snapshots": [], "refs": {}}, 10_000) == []


@given(st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=12), st.integers(0, 13))
def test_every_file_that_was_ever_there_is_in_a_version_that_stays(contents: list[set[int]], young: int) -> None:
    versions = []
    for number, files in enumerate(contents, 1):
        gone = contents[number - 2] - files if number > 1 else set()
        versions.append(version(number, number - 1 or None, **({"deleted_data_files": "1"} if gone else {})))
    forgotten = superfluous_versions(metadata(*versions), 1000 * young)
    kept = [files for number, files in enumerate(contents, 1) if number not in forgotten]
    assert set().union(*kept) == set().union(*contents)
