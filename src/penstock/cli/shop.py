"""The demo's source: a small shop, filled by SQL, then kept busy by a workload that does everything a stream can show.

Same seed, same choices; what the server then commits depends on timing only through `now()`.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg

PUBLICATION = "shop"
_PAUSE_S = 0.004
_TOASTED_HASHES = 120
"""MD5 sums in a long text: 4 kB that do not compress, so the server stores them apart."""

_SCHEMA = """
create table customers (
    id bigint primary key, name text not null, email text, region text,
    credit numeric(12, 2), is_vip boolean not null default false, created_at timestamptz not null
);
create table products (
    sku text primary key, title text not null, price numeric(10, 2) not null, weight real,
    tags text[], description text
);
alter table products alter column description set storage external;
create table orders (
    id bigint primary key, customer_id bigint not null, status text not null,
    placed_at timestamptz not null, total numeric(14, 2), note text
);
create table order_items (
    order_id bigint, line smallint, sku text not null, quantity integer not null, price numeric(10, 2),
    primary key (order_id, line)
);
create table documents (
    id uuid primary key, body jsonb, labels text[], scores double precision[], amount numeric,
    seen_at timestamptz, local_time timestamp, day date, raw bytea, duration interval, content text
);
alter table documents alter column content set storage external;
create table carts (id integer primary key, sku text, added_at timestamptz not null);
create publication shop for table customers, products, orders, order_items, documents, carts;
"""

_LOAD = (
    """
insert into customers
select n, 'Customer ' || n, case when n % 7 > 0 then 'c' || n || '@example.org' end,
       (array['north', 'south', 'east', 'west'])[1 + n % 4], (n % 100000) / 7.0, n % 10 = 0,
       timestamptz '2024-01-01 00:00+00' + n * interval '37 seconds'
from generate_series(1, {customers}) as n
""",
    """
insert into products
select 'sku-' || n, 'Product ' || n, (n % 9000) / 13.0 + 1, case when n % 5 > 0 then n / 3.0 end,
       case when n % 3 > 0 then array['tag' || n % 11, null, 'a,"b"'] end,
       (select string_agg(md5(n || ':' || m), '') from generate_series(1, {hashes}) as m)
from generate_series(1, {products}) as n
""",
    """
insert into orders
select n, 1 + n % {customers}, (array['new', 'paid', 'sent', 'done'])[1 + n % 4],
       timestamptz '2024-03-01 00:00+00' + n * interval '11 seconds', (n % 100000) / 3.0,
       case when n % 9 = 0 then E'Tür \u2603 "quoted", \\\\ and\nlines' end
from generate_series(1, {orders}) as n
""",
    """
insert into order_items
select n, line, 'sku-' || 1 + (n * line) % {products}, 1 + n % 5, (n % 700) / 11.0
from generate_series(1, {orders}) as n, generate_series(1, 2) as line
where n % 4 > 0 or line = 1
""",
    """
insert into documents
select md5('document ' || n)::uuid, jsonb_build_object('n', n, 'list', array[n, null], 'text', 'ünï'),
       array['l' || n % 5, null], case when n % 4 > 0 then array[n / 7.0, 'NaN', '-0', 'Infinity', null] end,
       n * 1234567.000000000000000000000089, timestamptz '2024-02-29 23:59:59.999999+00' + n * interval '1 day',
       timestamp '1999-12-31 23:59:59' + n * interval '1 hour', date '1970-01-01' + n,
       decode(md5(n::text), 'hex'), n * interval '1 minute',
       (select string_agg(md5(n || '!' || m), '') from generate_series(1, {hashes}) as m)
from generate_series(1, {documents}) as n
""",
    "analyze customers, products, orders, order_items, documents, carts",
)

# How an initial number of rows is divided; what is left are order_items.
_SHARES = {"customers": 0.12, "products": 0.01, "orders": 0.31, "documents": 0.02}


def create_shop(conninfo: str, rows: int) -> None:
    """Create the tables and the publication, with about so many rows."""
    sizes = {name: max(int(rows * share), 10) for name, share in _SHARES.items()}
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_SCHEMA)
        for statement in _LOAD:
            connection.execute(statement.format(**sizes, hashes=_TOASTED_HASHES).encode())


class Workload:
    """Changes the shop from a thread of its own, from `start` to `stop`."""

    def __init__(self, conninfo: str, rows: int, seed: int) -> None:
        self.transactions = 0
        """Committed ones."""
        self._conninfo = conninfo
        self._random = random.Random(seed)  # noqa: S311  # dice, not secrets
        self._orders = max(int(rows * _SHARES["orders"]), 10)
        self._customers = max(int(rows * _SHARES["customers"]), 10)
        self._products = max(int(rows * _SHARES["products"]), 10)
        self._documents = max(int(rows * _SHARES["documents"]), 10)
        self._fresh = 1_000_000_000
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)
        self._steps: dict[Callable[[psycopg.Cursor], None], int] = {
            self._place_order: 30,
            self._move_order: 20,
            self._price_product: 12,
            self._change_customer: 10,
            self._cancel_order: 8,
            self._renumber: 4,
            self._change_document: 8,
            self._fill_cart: 6,
            self._change_many: 1,
            self._change_and_take_back: 4,
            self._empty_carts: 1,
        }

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current transaction, and raise what went wrong, if anything did."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with psycopg.connect(self._conninfo) as connection:
                while not self._stopping.wait(_PAUSE_S):
                    self._step(connection)
        except psycopg.Error as error:
            self._error = error

    def _step(self, connection: psycopg.Connection[Any]) -> None:
        (step,) = self._random.choices(list(self._steps), list(self._steps.values()))
        with contextlib.suppress(_TakenBackError), connection.transaction(), psycopg.ClientCursor(connection) as cursor:
            step(cursor)
        self.transactions += 1

    def _new(self) -> int:
        self._fresh += 1
        return self._fresh

    def _any(self, count: int) -> int:
        return self._random.randint(1, count)

    def _place_order(self, cursor: psycopg.Cursor) -> None:
        order = self._new()
        cursor.execute(
            "insert into orders values (%s, %s, 'new', clock_timestamp(), %s, null)",
            (order, self._any(self._customers), self._any(10**6) / 100),
        )
        for line in range(1, 1 + self._any(4)):
            cursor.execute(
                "insert into order_items values (%s, %s, %s, %s, %s)",
                (order, line, f"sku-{self._any(self._products)}", self._any(9), self._any(10**4) / 100),
            )

    def _move_order(self, cursor: psycopg.Cursor) -> None:
        status = self._random.choice(["paid", "sent", "done", "returned"])
        cursor.execute("update orders set status = %s where id = %s", (status, self._any(self._orders)))
        cursor.execute("update orders set note = %s where id = %s", (f"now {status} ✓", self._fresh))

    def _price_product(self, cursor: psycopg.Cursor) -> None:
        """Leave the long description alone: the stream does not send it again."""
        sku = f"sku-{self._any(self._products)}"
        cursor.execute("update products set price = %s where sku = %s", (self._any(10**6) / 100, sku))

    def _change_customer(self, cursor: psycopg.Cursor) -> None:
        cursor.execute(
            "update customers set credit = credit + 1, is_vip = not is_vip, email = nullif(email, '') where id = %s",
            (self._any(self._customers),),
        )

    def _cancel_order(self, cursor: psycopg.Cursor) -> None:
        order = self._any(self._orders)
        cursor.execute("delete from order_items where order_id = %s", (order,))
        cursor.execute("delete from orders where id = %s", (order,))

    def _renumber(self, cursor: psycopg.Cursor) -> None:
        """Change keys: of a row with an unchanged long text, and of one in a composite key."""
        cursor.execute(
            "update products set sku = %s where sku = %s", (f"new-{self._new()}", f"sku-{self._any(self._products)}")
        )
        cursor.execute(
            "update order_items set line = line + 100 where order_id = %s and line < 100", (self._any(self._orders),)
        )

    def _change_document(self, cursor: psycopg.Cursor) -> None:
        number = self._any(self._documents * 2)
        cursor.execute(
            "insert into documents (id, body, labels, amount, seen_at, content)"
            " values (md5('document ' || %s)::uuid, '{\"is\": \"new\"}', '{}', %s, clock_timestamp(), repeat('x', %s))"
            " on conflict (id) do update set body = documents.body || '{\"again\": true}', labels = null,"
            " scores = array_append(documents.scores, 0.1), amount = excluded.amount",
            (number, number / 7, number),
        )
        cursor.execute("delete from documents where id = md5('document ' || %s)::uuid", (self._any(self._documents),))

    def _fill_cart(self, cursor: psycopg.Cursor) -> None:
        cursor.execute(
            "insert into carts values (%s, %s, clock_timestamp())",
            (self._new(), f"sku-{self._any(self._products)}"),
        )

    def _change_many(self, cursor: psycopg.Cursor) -> None:
        start = self._any(self._orders)
        cursor.execute("update orders set total = total + 0.01 where id between %s and %s", (start, start + 500))

    def _change_and_take_back(self, cursor: psycopg.Cursor) -> None:
        self._place_order(cursor)
        cursor.execute("delete from customers where id = %s", (self._any(self._customers),))
        raise _TakenBackError

    def _empty_carts(self, cursor: psycopg.Cursor) -> None:
        """Truncate as a careful application does: whoever queues for an exclusive lock makes all others queue too."""
        cursor.execute("set local lock_timeout = '100ms'")
        try:
            cursor.execute("truncate carts")
        except psycopg.errors.LockNotAvailable:
            raise _TakenBackError from None
        self._fill_cart(cursor)


class _TakenBackError(Exception):
    """Rolls a transaction back."""
