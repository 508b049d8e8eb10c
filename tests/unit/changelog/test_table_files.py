"""A table's files are found as if each were looked at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.changelog.entry import DataFile
from penstock.changelog.reader import TableFiles
from penstock.model.lsn import Lsn
from penstock.model.table import TableId

positions = st.integers(0, 30).map(Lsn)


def make_file(number: int, first: Lsn, last: Lsn) -> DataFile:
    return DataFile(
        table=TableId(1),
        version=1,
        path=f"f{number}",
        rows=1,
        size_bytes=1,
        inserts=1,
        updates=0,
        deletes=0,
        has_unchanged=False,
        has_key_changes=False,
        first_lsn=first,
        last_lsn=last,
        footer_crc=0,
    )


@given(st.lists(positions), st.lists(st.tuples(positions, st.booleans()), min_size=1))
def test_the_files_that_reach_a_position_are_found_in_order_whatever_was_forgotten(
    ends: list[Lsn], asked: list[tuple[Lsn, bool]]
) -> None:
    known = [make_file(number, Lsn(max(0, end - 3)), end) for number, end in enumerate(ends)]
    files = TableFiles()
    for file in known:
        files.add(file)
    forgotten = Lsn(0)
    for position, forgets in asked:
        wanted = max(position, forgotten)
        assert files.since(wanted) == [file for file in known if file.last_lsn >= wanted]
        if forgets:
            files.forget(wanted)
            forgotten = wanted
