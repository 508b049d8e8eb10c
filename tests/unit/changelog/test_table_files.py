"""A table's files are found as if each were looked at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from plugins.data_file import data_file

from penstock.changelog.reader import TableFiles
from penstock.model.lsn import Lsn

positions = st.integers(0, 30).map(Lsn)


@given(st.lists(positions), st.lists(st.tuples(positions, st.booleans()), min_size=1))
def test_the_files_that_reach_a_position_are_found_in_order_whatever_was_forgotten(
    ends: list[Lsn], asked: list[tuple[Lsn, bool]]
) -> None:
    known = [
        data_file(path=f"f{number}", first_lsn=Lsn(max(0, end - 3)), last_lsn=end) for number, end in enumerate(ends)
    ]
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
