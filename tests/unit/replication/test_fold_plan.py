from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from penstock.replication.fold import KeyedChange, LogicalRow, trace


def change(op: str, key: int, old: int | None = None) -> KeyedChange:
    return KeyedChange(op, (key,), None if old is None else (old,))


def test_a_chain_of_key_changes_is_one_row() -> None:
    traced = trace([change("U", 2, 1), change("U", 3, 2), change("U", 3)])
    assert traced.labels == (0, 0, 0)
    assert traced.rows == (LogicalRow((1,), (3,)),)
    assert traced.vacated == ((1,),)


def test_a_swap_through_a_third_key_vacates_nothing() -> None:
    traced = trace([change("U", 9, 1), change("U", 1, 2), change("U", 2, 9)])
    assert traced.labels == (0, 1, 0)
    assert traced.rows == (LogicalRow((1,), (2,)), LogicalRow((2,), (1,)))
    assert traced.vacated == ()


def test_a_key_deleted_and_inserted_again_is_two_rows() -> None:
    traced = trace([change("D", 1), change("I", 1), change("U", 1)])
    assert traced.labels == (0, 1, 1)
    assert traced.rows == (LogicalRow((1,), None), LogicalRow(None, (1,)))
    assert traced.vacated == ()


def test_a_row_that_comes_and_goes_leaves_nothing_to_do() -> None:
    traced = trace([change("I", 1), change("U", 2, 1), change("D", 2)])
    assert traced.rows == (LogicalRow(None, None),)
    assert traced.vacated == ()


@dataclass
class Source:
    """A table as Postgres has it: every row an object of its own, followed by identity."""

    rows: dict[int, list[int]]
    changes: list[tuple[KeyedChange, list[int]]]

    def step(self, kind: int, a: int, b: int) -> None:
        held, free = a in self.rows, b not in self.rows
        if not held:
            self.rows[a] = []
            self._note(change("I", a), a)
        elif kind == 0:
            self.changes.append((change("D", a), self.rows.pop(a)))
        elif kind == 1 and free:
            self.rows[b] = self.rows.pop(a)
            self._note(change("U", b, a), b)
        else:
            self._note(change("U", a), a)

    def _note(self, made: KeyedChange, key: int) -> None:
        self.changes.append((made, self.rows[key]))


steps = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 5)), max_size=40)


@given(present=st.sets(st.integers(0, 5)), taken=steps)
def test_rows_are_told_apart_exactly_as_the_source_has_them(
    present: set[int], taken: list[tuple[int, int, int]]
) -> None:
    before = {key: [key] for key in present}
    source = Source(dict(before), [])
    for step in taken:
        source.step(*step)
    traced = trace(made for made, _row in source.changes)

    # two changes share a label exactly if they are the same object's
    objects = [id(row) for _made, row in source.changes]
    assert len(set(zip(objects, traced.labels, strict=True))) == len(set(objects)) == len(set(traced.labels))

    touched = {id(row) for _made, row in source.changes}
    was = {id(row): key for key, row in before.items()}
    now = {id(row): key for key, row in source.rows.items()}
    for object_, label in zip(objects, traced.labels, strict=True):
        row = traced.rows[label]
        assert row.origin == ((was[object_],) if object_ in was else None)
        assert row.final == ((now[object_],) if object_ in now else None)

    vacated = {(key,) for key, row in before.items() if id(row) in touched and key not in source.rows}
    assert set(traced.vacated) == vacated
