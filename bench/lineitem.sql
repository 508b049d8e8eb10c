-- TPC-H's lineitem, with values distributed as its generator distributes them, from the row's number alone.

create table lineitem (
    l_orderkey bigint not null,
    l_partkey bigint not null,
    l_suppkey bigint not null,
    l_linenumber int not null,
    l_quantity numeric(15, 2) not null,
    l_extendedprice numeric(15, 2) not null,
    l_discount numeric(15, 2) not null,
    l_tax numeric(15, 2) not null,
    l_returnflag char(1) not null,
    l_linestatus char(1) not null,
    l_shipdate date not null,
    l_commitdate date not null,
    l_receiptdate date not null,
    l_shipinstruct char(25) not null,
    l_shipmode char(10) not null,
    l_comment varchar(44) not null
);

-- A number that looks like drawn at random from 0 … below - 1, the same for the same row and place.
create function draw(row_number bigint, place int, below bigint) returns bigint language sql immutable as $$
    select ((hashint8extended(row_number, place) % below) + below) % below
$$;

create function make_lineitems(first_id bigint, last_id bigint) returns setof lineitem language sql stable as $$
    select
        n / 4 + 1,
        part,
        draw(n, 2, 10000) + 1,
        (n % 4 + 1)::int,
        quantity,
        quantity * (90000 + part / 10 % 20001 + 100 * (part % 1000)) / 100,
        draw(n, 4, 11)::numeric / 100,
        draw(n, 5, 9)::numeric / 100,
        case when ship + 30 > date '1995-06-17' then 'N' when draw(n, 6, 2) = 0 then 'R' else 'A' end,
        case when ship > date '1995-06-17' then 'O' else 'F' end,
        ship,
        ship + (draw(n, 7, 61) - 30)::int,
        ship + (draw(n, 8, 30) + 1)::int,
        (array['DELIVER IN PERSON', 'COLLECT COD', 'NONE', 'TAKE BACK RETURN'])[draw(n, 9, 4) + 1],
        (array['REG AIR', 'AIR', 'RAIL', 'SHIP', 'TRUCK', 'MAIL', 'FOB'])[draw(n, 10, 7) + 1],
        substr('furiously regular deposits sleep ' || md5(n::text), 1, 10 + draw(n, 11, 34)::int)
    from generate_series(first_id, last_id) as n,
    lateral (select draw(n, 1, 200000) + 1, (draw(n, 3, 50) + 1)::numeric) as drawn (part, quantity),
    lateral (select date '1992-01-02' + draw(n, 12, 2526)::int) as shipped (ship)
$$;
