"""A source for the model test: tables of every kind, and every kind of change, drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from hypothesis import strategies as st
from plugins.kept import AUDIT, Kept, audited

from penstock.model.mode import TableMode, TableModes
from penstock.testing.postgres import Database

KEYS = 7
"""So few that changes of one row meet in one batch."""
_SIZES = (0, 1, 70, 9000)
"""Of values, in hashes of 32 bytes: none, short, just TOASTed, large."""


@dataclass(frozen=True)
class ModelTable(Kept):
    """A table of the source."""

    kind: str = "keyed"
    """How rows are identified: keyed, index, full, keyless, or nothing, whose rows can only be added."""

    @property
    def can_change_rows(self) -> bool:
        return self.kind != "nothing"

    @property
    def identifies_rows(self) -> bool:
        return bool(self.key)

    @property
    def ddl(self) -> str:
        key, v, big, *more = (f'"{name}"' for name in self.columns)
        primary = "primary key" if self.kind in {"keyed", "full"} else "not null"
        others = "".join(f", {name} int references public.parent on update cascade on delete cascade" for name in more)
        script = f"create table {self.quoted} ({key} int {primary}, {v} int, {big} text{others});"
        script += f"alter table {self.quoted} alter column {big} set storage external;"
        if self.kind in {"full", "keyless"}:
            script += f"alter table {self.quoted} replica identity full;"
        if self.kind == "nothing":
            script += f"alter table {self.quoted} replica identity nothing;"
        if self.kind == "index":
            script += f'create unique index "{self.name}_key" on {self.quoted} ({key});'
            script += f'alter table {self.quoted} replica identity using index "{self.name}_key";'
        return script


def _tables() -> list[ModelTable]:
    current, history, scd2 = TableMode
    keyed = [ModelTable(f"keyed_{mode}", mode) for mode in TableMode]
    return [
        ModelTable("parent", current),
        ModelTable("child", history, ("id", "v", "big", "parent")),
        *keyed,
        ModelTable("Select", scd2, ("Order", "group", "Größe €"), ("Order",)),
        ModelTable("by_index", history, kind="index"),
        ModelTable("by_index_now", current, kind="index"),
        ModelTable("full_now", current, kind="full"),
        ModelTable("full_past", history, kind="full"),
        ModelTable("keyless", history, key=(), kind="keyless"),
        ModelTable("added_now", current, key=(), kind="nothing"),
        ModelTable("added_past", history, key=(), kind="nothing"),
    ]


TABLES = _tables()


def modes() -> TableModes:
    return TableModes(tables={f"public.{table.name}": table.mode for table in TABLES})


def create_source(database: Database) -> None:
    database.execute(AUDIT + "create publication test_pub for tables in schema public")
    for table in TABLES:
        database.execute(table.ddl + ("" if table.mode is TableMode.CURRENT else audited(table.quoted)))


@dataclass(frozen=True)
class Change:
    """What is done to one table: `one`, `two` and `three` are keys, `size` that of a value."""

    table: ModelTable
    kind: str
    one: int
    two: int
    three: int
    size: int

    def __repr__(self) -> str:
        return f"{self.kind}({self.table.name}, {self.one}, {self.two}, {self.three}, size={self.size})"

    @property
    def statements(self) -> Sequence[str]:
        return _KINDS[self.kind](self)

    # Each returns its statements.

    def insert(self) -> list[str]:
        guard = f" where not exists (select from {self._table} where {self._is(self.one)})"
        return [f"insert into {self._table} select {self._row}{guard if self.table.identifies_rows else ''}"]

    def touch(self) -> list[str]:
        """Leave the large value unchanged."""
        return [f"update {self._table} set {self._v} = coalesce({self._v}, 0) + 1 where {self._is(self.one)}"]

    def rewrite(self) -> list[str]:
        return [
            f"update {self._table} set {self._big} = {self._value}, {self._v} = {self.two} where {self._is(self.one)}"
        ]

    def blank(self) -> list[str]:
        return [f"update {self._table} set {self._v} = null, {self._big} = null where {self._is(self.one)}"]

    def move(self) -> list[str]:
        return [self._moved(self.one, self.two)]

    def chain(self) -> list[str]:
        return [self._moved(self.one, self.two), self._moved(self.two, self.three), self._moved(self.three, self.one)]

    def swap(self) -> list[str]:
        return [self._moved(self.one, 99), self._moved(self.two, self.one), self._moved(99, self.two)]

    def delete(self) -> list[str]:
        return [f"delete from {self._table} where {self._is(self.one)}"]

    def replace(self) -> list[str]:
        return [*self.delete(), *self.insert()]

    def insert_and_touch(self) -> list[str]:
        return [*self.insert(), *self.touch()]

    def insert_many(self) -> list[str]:
        """Rows that nothing else meets, apart from truncates."""
        start = f"(select greatest(max({self._key}), 1000) from {self._table})"
        rest = ", null" * (len(self.table.columns) - 3)
        return [f"insert into {self._table} select {start} + g, g, 'many'{rest} from generate_series(1, 300) g"]

    def truncate(self) -> list[str]:
        """With others, in one statement; with what refers to the table, if that is so."""
        other = TABLES[(self.one + self.two * KEYS) % len(TABLES)].quoted
        tables = self._table if other == self._table else f"{self._table}, {other}"
        return [f"truncate {tables} cascade"]

    def _moved(self, old: int, new: int) -> str:
        taken = f" and not exists (select from {self._table} where {self._is(new)})"
        return f"update {self._table} set {self._key} = {new} where {self._is(old)}{taken if self.table.key else ''}"

    def _is(self, key: int) -> str:
        return f"{self._key} = {key}"

    @property
    def _row(self) -> str:
        parent = [f"(select id from public.parent where id = {self.two})"] * (len(self.table.columns) - 3)
        return ", ".join([str(self.one), str(self.two), self._value, *parent])

    @property
    def _value(self) -> str:
        return "null" if self.size == 0 else f"repeat(md5('{self.three}'), {self.size})"

    @property
    def _table(self) -> str:
        return self.table.quoted

    @property
    def _key(self) -> str:
        return f'"{self.table.columns[0]}"'

    @property
    def _v(self) -> str:
        return f'"{self.table.columns[1]}"'

    @property
    def _big(self) -> str:
        return f'"{self.table.columns[2]}"'


_KINDS: dict[str, Callable[[Change], list[str]]] = {
    "insert": Change.insert,
    "insert_and_touch": Change.insert_and_touch,
    "touch": Change.touch,
    "rewrite": Change.rewrite,
    "blank": Change.blank,
    "move": Change.move,
    "chain": Change.chain,
    "swap": Change.swap,
    "delete": Change.delete,
    "replace": Change.replace,
    "insert_many": Change.insert_many,
    "truncate": Change.truncate,
}
# Truncates and many rows are seldom: the first leave little to compare, the second take time.
_USUAL = [kind for kind in _KINDS if kind not in {"truncate", "insert_many"}]
_ADDING = ["insert"] * 7 + ["truncate", "insert_many"]
_CHANGING = _USUAL * 3 + ["truncate", "insert_many"]

_KEY = st.integers(1, KEYS)


def _changes_of(table: ModelTable) -> st.SearchStrategy[Change]:
    kinds = st.sampled_from(_CHANGING if table.can_change_rows else _ADDING)
    return st.builds(Change, st.just(table), kinds, _KEY, _KEY, _KEY, st.sampled_from(_SIZES))


CHANGES = st.sampled_from(TABLES).flatmap(_changes_of)


@dataclass(frozen=True)
class Part:
    """Some changes of a transaction, all of them undone by a savepoint or none."""

    changes: Sequence[Change]
    is_undone: bool


PARTS = st.builds(Part, st.lists(CHANGES, min_size=1, max_size=6), st.sampled_from([False, False, False, True]))


@dataclass(frozen=True)
class Transaction:
    """What is done at once."""

    parts: Sequence[Part]
    is_committed: bool

    def run(self, database: Database) -> None:
        """Do it; what the source refuses is as if it had never been asked for."""
        is_undone = not self.is_committed
        with (
            suppress(psycopg.Error),
            database.connect() as connection,
            connection.transaction(force_rollback=is_undone),
        ):
            for part in self.parts:
                self._run(connection, part)

    @staticmethod
    def _run(connection: psycopg.Connection[tuple[object, ...]], part: Part) -> None:
        with connection.transaction(force_rollback=part.is_undone):
            for change in part.changes:
                for statement in change.statements:
                    connection.execute(statement)


TRANSACTIONS = st.builds(Transaction, st.lists(PARTS, min_size=1, max_size=3), st.sampled_from([True] * 9 + [False]))
