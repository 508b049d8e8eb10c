-- The tables of the benchmarks, and procedures that write to them. Each writes exactly the changes it is asked for.

create table changes (
    id bigint primary key,
    quantity int not null,
    name text not null,
    price numeric(12, 2) not null,
    ratio float8 not null,
    changed_at timestamptz not null,
    is_active bool not null,
    note text not null,
    detail jsonb not null,
    token uuid not null
);

-- Written last: its commit is where a backlog ends.
create table marker (id bigint primary key generated always as identity, written_at timestamptz not null default now());

create table large_text (id bigint primary key, body text not null);
create table large_bytes (id bigint primary key, body bytea not null);
alter table large_text alter body set storage external;
alter table large_bytes alter body set storage external;

create function make_rows(first_id bigint, last_id bigint) returns setof changes language sql stable as $$
    select
        id,
        (id * 7919 % 1000000)::int,
        'customer ' || lpad((id % 100000000000)::text, 11, '0'),
        (id * 37 % 1000000000)::numeric / 100,
        sqrt(id),
        timestamptz '2026-01-01 00:00:00+00' + (id % 10000000) * interval '1.000003 seconds',
        id % 3 <> 0,
        md5(id::text) || 'note-end',
        jsonb_build_object('page', id % 1000, 'source', 'web', 'score', id % 97),
        md5((id + 1)::text)::uuid
    from generate_series(first_id, last_id) as id
$$;

create procedure write_inserts(first_id bigint, changes bigint, rows_per_transaction bigint) language plpgsql as $$
declare
    last_id constant bigint := first_id + changes - 1;
    id bigint := first_id;
begin
    while id <= last_id loop
        insert into changes select * from make_rows(id, least(id + rows_per_transaction - 1, last_id));
        commit;
        id := id + rows_per_transaction;
    end loop;
end
$$;

-- Of every twenty changes ten are inserts, seven updates and three deletes, scattered. The rows 1 … existing are there
-- already: deletes take the lower half in order, updates fall on the upper half. Each of `parts` sessions has keys of
-- its own, so that none waits for another.
create procedure write_mix(
    first_id bigint, changes bigint, rows_per_transaction bigint, existing bigint, part bigint, parts bigint
) language plpgsql as $$
declare
    half constant bigint := existing / 2;
    share constant bigint := half / parts;
    deleted bigint := 0;
    draw bigint;
begin
    for i in 0 .. changes - 1 loop
        draw := i % 20 * 7 % 20;
        if draw < 10 then
            insert into changes select * from make_rows(first_id + i, first_id + i);
        elsif draw < 17 then
            update changes
            set
                quantity = i,
                price = price + 1,
                changed_at = changed_at + interval '1 second',
                note = md5(i::text) || 'note-new'
            where id = half + 1 + part + i::bigint * 7919 % share * parts;
        else
            delete from changes where id = 1 + part + deleted * parts;
            deleted := deleted + 1;
        end if;
        if not found then
            raise 'change % of part % met no row', i, part;
        end if;
        if (i + 1) % rows_per_transaction = 0 then
            commit;
        end if;
    end loop;
end
$$;

create procedure create_small_tables(prefix text, tables bigint) language plpgsql as $$
begin
    for number in 1 .. tables loop
        execute format(
            'create table %I (id bigint primary key generated always as identity, name text, changed_at timestamptz)',
            prefix || number
        );
        commit;
    end loop;
end
$$;

-- One row into each table, in transactions of one row or, where `at_once`, all in one.
create procedure write_small_tables(prefix text, tables bigint, at_once bool) language plpgsql as $$
begin
    for number in 1 .. tables loop
        execute format('insert into %I (name, changed_at) values (%L, now())', prefix || number, md5(number::text));
        if not at_once then
            commit;
        end if;
    end loop;
end
$$;
