"""A source under random, seeded work: every kind of change, in transactions of every kind.

Writers keep to rows of their own, so that they seldom wait for each other; what the server refuses
(a deadlock, say) is rolled back and passed over, as an application would.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

import psycopg

from penstock.testing.postgres import Database

SCHEMA = """
create table account (
    id bigint primary key, name text not null, balance numeric(12, 2), total numeric, created timestamptz,
    local timestamp, day date, doc jsonb, uid uuid, tags text[], numbers int[], ratio float8, small int2,
    active bool, data bytea, big text);
create table line (order_id int, line_no int, note text, quantity numeric(8, 3), primary key (order_id, line_no));
create table never_written (id int primary key, v text);
create table moving (id int primary key, v text, big text);
create table "Mixed Case" (id int primary key, "Select" text);
create table scratch (id int primary key, v text);
create table audit (at timestamptz, writer int, number bigint, what text);
create table whole_row (id int primary key, v text, big text);
alter table whole_row replica identity full;
"""
TABLES = ("account", "line", "never_written", "moving", '"Mixed Case"', "scratch", "audit", "whole_row")
KEY_SPACE = 1_000_000
"""Keys that each writer has for itself."""

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]


def create_source(database: Database, publication: str, rows: int = 2000) -> None:
    """Create the tables with some rows, and publish them."""
    database.execute(SCHEMA)
    with database.connect(autocommit=False) as connection:
        writer = Writer(connection, 9, random.Random(0))
        for _ in range(rows // 100):
            writer.insert_accounts(100)
            writer.insert_lines(100)
        writer.insert_scratch()
        writer.insert_moving()
        writer.insert_whole_rows()
    database.execute(f"create publication {publication} for all tables")


class Writer:
    """One connection's work."""

    def __init__(self, connection: Connection, number: int, randomness: random.Random) -> None:
        self._connection = connection
        self._random = randomness
        self._number = number
        self._base = number * KEY_SPACE
        self._next = self._base
        self.transactions = 0

    def run_one(self) -> None:
        """Run one transaction of a few changes; some are rolled back."""
        work = self._random.choices(self._kinds, k=self._random.randint(1, 4))
        try:
            for change in work:
                change()
            self._audit()
            if self._random.random() < 0.1:
                self._connection.rollback()
            else:
                self._connection.commit()
            self.transactions += 1
        except psycopg.Error:
            self._connection.rollback()

    @property
    def _kinds(self) -> list[Callable[[], None]]:
        often = [self.insert_accounts, self.update_accounts, self.touch_accounts, self.insert_lines, self.update_lines]
        seldom = [
            self.delete_accounts,
            self.replace_account,
            self.delete_lines,
            self.insert_moving,
            self.move_keys,
            self.swap_keys,
            self.insert_scratch,
            self.truncate_scratch,
            self.write_mixed_case,
            self.insert_whole_rows,
            self.change_whole_rows,
            self.roll_back_a_part,
        ]
        return [*often, *often, *seldom, *([self.insert_many] if self._random.random() < 0.01 else [])]

    def insert_accounts(self, count: int | None = None) -> None:
        count = count or self._random.randint(1, 20)
        first, self._next = self._next, self._next + count
        self._run(
            """insert into account select g, 'n' || g, (random() * 1e9)::numeric(12, 2), random()::numeric * 1e20,
                 clock_timestamp(), localtimestamp - g * interval '1 minute', date '2020-01-01' + (g %% 5000)::int,
                 jsonb_build_object('g', g, 'text', 'ü"\\' || g), %(uid)s::uuid, array['a,b', null, '"', g::text],
                 case when g %% 3 = 0 then null else array[g::int, null, -1] end, random() / 3, (g %% 100)::int2,
                 g %% 2 = 0, decode(md5(g::text), 'hex'),
                 case when g %% 4 = 0 then null else (select string_agg(md5((g * n)::text), '')
                      from generate_series(1, 300) n) end
               from generate_series(%(first)s::bigint, %(last)s) g""",
            first=first,
            last=first + count - 1,
            uid=uuid.UUID(int=self._random.getrandbits(128)),
        )

    def update_accounts(self) -> None:
        self._run(
            "update account set big = repeat(md5(random()::text), 300), total = null where id = any(%(ids)s)",
            ids=self._some(),
        )

    def touch_accounts(self) -> None:
        """Leave the TOASTed value unchanged."""
        self._run(
            "update account set balance = balance + 1, ratio = 'NaN', tags = '{}' where id = any(%(ids)s)",
            ids=self._some(),
        )

    def delete_accounts(self) -> None:
        self._run("delete from account where id = any(%(ids)s)", ids=self._some(3))

    def replace_account(self) -> None:
        [chosen] = self._some(1)
        self._run("delete from account where id = %(id)s", id=chosen)
        self._run("insert into account (id, name) values (%(id)s, 'again')", id=chosen)
        self._run("update account set name = 'and again' where id = %(id)s", id=chosen)

    def insert_lines(self, count: int | None = None) -> None:
        self._run(
            """insert into line select %(order)s, g, 'note ' || g, random()::numeric(8, 3)
               from generate_series(1, %(count)s) g on conflict do nothing""",
            order=self._base + self._random.randrange(1000),
            count=count or self._random.randint(1, 9),
        )

    def update_lines(self) -> None:
        self._run(
            "update line set note = 'changed', quantity = null where order_id = %(order)s",
            order=self._base + self._random.randrange(1000),
        )

    def delete_lines(self) -> None:
        self._run("delete from line where order_id = %(order)s", order=self._base + self._random.randrange(1000))

    def insert_many(self) -> None:
        """Write a transaction larger than a segment."""
        self._run(
            """insert into line select %(base)s + 1000 + g / 100, g %% 100, repeat('x', 50), g %% 1000
               from generate_series(0, 9999) g on conflict (order_id, line_no) do update set note = 'many'""",
            base=self._base,
        )

    def insert_moving(self) -> None:
        self._run(
            """insert into moving select %(base)s + g, 'v', (select string_agg(md5((g + n)::text), '')
               from generate_series(1, 300) n) from generate_series(1, 10) g on conflict do nothing""",
            base=self._base + self._random.randrange(50) * 10,
        )

    def move_keys(self) -> None:
        """Change keys, in chains, leaving the TOASTed value unchanged."""
        step = self._random.choice([1000, -1000, 3000])
        self._run(
            """update moving set id = id + %(step)s
               where id between %(low)s and %(low)s + 20 and id + %(step)s > %(base)s""",
            step=step,
            low=self._base + self._random.randrange(4000),
            base=self._base,
        )

    def swap_keys(self) -> None:
        first, second = (self._base + self._random.randrange(500) for _ in range(2))
        for old, new in ((first, self._base + 999_999), (second, first), (self._base + 999_999, second)):
            self._run("update moving set id = %(new)s where id = %(old)s", old=old, new=new)

    def insert_scratch(self) -> None:
        self._run(
            "insert into scratch select %(base)s + g, 'v' from generate_series(1, 20) g on conflict do nothing",
            base=self._base + self._random.randrange(100),
        )

    def truncate_scratch(self) -> None:
        self._run("truncate scratch")
        if self._random.random() < 0.5:
            self.insert_scratch()

    def write_mixed_case(self) -> None:
        self._run(
            """insert into "Mixed Case" values (%(id)s, 'first')
               on conflict (id) do update set "Select" = "Mixed Case"."Select" || '+'""",
            id=self._base + self._random.randrange(50),
        )

    def insert_whole_rows(self) -> None:
        self._run(
            """insert into whole_row select %(base)s + g, 'v', repeat(md5(g::text), 300)
               from generate_series(1, 5) g on conflict do nothing""",
            base=self._base + self._random.randrange(200),
        )

    def change_whole_rows(self) -> None:
        chosen = self._base + self._random.randrange(200)
        self._run("update whole_row set v = 'w' where id between %(id)s and %(id)s + 3", id=chosen)
        self._run("update whole_row set id = id + 500 where id = %(id)s", id=chosen)
        self._run("delete from whole_row where id = %(id)s + 4", id=chosen)

    def roll_back_a_part(self) -> None:
        with self._connection.transaction(force_rollback=True):
            self.insert_accounts(2)
            self.update_lines()

    def _audit(self) -> None:
        """Note the transaction in a table without a key, where a repeated change cannot hide."""
        self._run(
            "insert into audit values (clock_timestamp(), %(writer)s, %(number)s, 'transaction')",
            writer=self._number,
            number=self.transactions,
        )

    def _some(self, count: int = 10) -> list[int]:
        return [self._base + self._random.randrange(max(self._next - self._base, 1)) for _ in range(count)]

    def _run(self, statement: str, **values: object) -> None:
        self._connection.execute(statement, values)


class Workload:
    """Writers at work from entering to leaving."""

    def __init__(self, database: Database, seed: int, writers: int = 2, pause_s: float = 0.05) -> None:
        self._database = database
        self._seed = seed
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(writers)]
        self._errors: list[BaseException] = []
        self.transactions = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Let every writer finish its transaction."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _work(self, number: int) -> None:
        try:
            with self._database.connect(autocommit=False) as connection:
                writer = Writer(connection, number + 1, random.Random(self._seed + number))
                while not self._stopping.wait(self._pause_s):
                    writer.run_one()
                    self.transactions += 1
        except BaseException as error:  # noqa: BLE001  # raised by `stop`
            self._errors.append(error)
