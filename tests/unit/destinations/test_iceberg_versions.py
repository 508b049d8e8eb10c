"""Which versions of an Iceberg table nobody would miss."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.destinations.iceberg.versions import needed_since, superfluous_versions


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
    assert superfluous_versions(metadata(*chain(3)), 10_000, 99) == [4, 3, 1]
    removed = [version(1, None), version(2, 1), version(3, 2, removed_delete_files="1")]
    assert superfluous_versions(metadata(*removed), 10_000, 99) == [1]


def test_young_versions_the_present_one_and_those_with_names_stay() -> None:
    assert superfluous_versions(metadata(*chain()), 3000, 99) == [2, 1]
    assert superfluous_versions(metadata(*chain(), audit=2), 10_000, 99) == [4, 3, 1]


def test_of_many_young_versions_the_newest_stay() -> None:
    assert superfluous_versions(metadata(*chain()), 0, 99) == []
    assert superfluous_versions(metadata(*chain()), 0, 3) == [2, 1]
    assert superfluous_versions(metadata(*chain(3)), 0, 2) == [3, 1], "by the second a file lives"
    assert superfluous_versions(metadata(*chain()), 4000, 4) == [3, 2, 1]


def test_what_is_no_ancestor_or_beyond_a_gap_stays() -> None:
    rolled_back = metadata(*chain(), current=3)
    assert superfluous_versions(rolled_back, 10_000, 99) == [2, 1]
    with_gap = [each for each in chain() if each["snapshot-id"] != 3]
    assert superfluous_versions(metadata(*with_gap), 10_000, 99) == [4]


def test_a_table_without_versions_has_none_to_forget() -> None:
    assert superfluous_versions({"current-snapshot-id": -1, "snapshots": [], "refs": {}}, 10_000, 99) == []


def test_commits_of_others_that_need_not_say_what_they_took_out_count_as_if_they_had() -> None:
    foreign = [version(1, None), {**version(2, 1), "summary": {"operation": "replace"}}, version(3, 2)]
    assert superfluous_versions(metadata(*foreign), 10_000, 99) == [2]
    ours = {**version(2, 1), "summary": {"operation": "overwrite", "penstock.p.1.lsn": "0/1"}}
    assert superfluous_versions(metadata(version(1, None), ours, version(3, 2)), 10_000, 99) == [2, 1]


def test_the_version_that_was_the_present_one_at_a_time_is_needed_from_then_on() -> None:
    assert needed_since(metadata(*chain()), 2500) == 2000
    assert needed_since(metadata(*chain()), 3000) == 3000
    assert needed_since(metadata(*chain()), 99_000) == 5000, "an old version that was replaced a moment ago"
    assert needed_since(metadata(*chain()), 500) == 500


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 20)), st.none() | st.integers(0, 13)), min_size=1, max_size=12),
    st.integers(1, 13),
)
def test_the_last_version_that_had_a_file_stays_however_often_they_are_thinned_out(
    steps: list[tuple[set[int], int | None]], most_young: int
) -> None:
    """Each step is another version with its files, and then perhaps all from before a time are thinned out."""
    contents: dict[int, set[int]] = {}
    versions: dict[int, dict[str, Any]] = {}
    for number, (files, young) in enumerate(steps, 1):
        gone = contents.get(number - 1, set()) - files
        contents[number] = files
        versions[number] = version(number, number - 1 or None, **({"deleted_data_files": "1"} if gone else {}))
        if young is not None:
            for id_ in superfluous_versions(metadata(*versions.values()), 1000 * young, most_young):
                del versions[id_]
        last = {file: id_ for id_, held in contents.items() for file in held}
        assert set(last.values()) <= versions.keys()
