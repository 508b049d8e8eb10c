-- Workloads of the apply benchmark, besides those of workload.sql. Each writes exactly the changes it is asked for.

-- Of every twenty changes twelve are updates, five inserts and three deletes. The rows 1 … existing are there already:
-- every fourth of them is there to be deleted, the others to be updated, each once at most and in no order of keys.
create procedure write_updates(first_id bigint, changes bigint, rows_per_transaction bigint, existing bigint)
language plpgsql as $$
declare
    updates constant bigint := rows_per_transaction * 12 / 20;
    deletes constant bigint := rows_per_transaction * 3 / 20;
    inserts constant bigint := rows_per_transaction - updates - deletes;
    deletable constant bigint := existing / 4;
    updatable constant bigint := deletable * 3;
begin
    for number in 0 .. changes / rows_per_transaction - 1 loop
        update changes
        set
            quantity = number,
            price = price + 1,
            changed_at = changed_at + interval '1 second',
            note = md5(number::text) || 'note-new'
        from (
            select n * 7919 % updatable as place
            from generate_series(number * updates, (number + 1) * updates - 1) as n
        ) as chosen
        where id = place / 3 * 4 + place % 3 + 1;
        delete from changes
        where id in (
            select 4 + n * 7919 % deletable * 4
            from generate_series(number * deletes, (number + 1) * deletes - 1) as n
        );
        insert into changes
        select * from make_rows(first_id + number * inserts, first_id + (number + 1) * inserts - 1);
        commit;
    end loop;
end
$$;

-- Updates of a batch: of keys side by side, or of keys all over the table.
create procedure write_batch(first_id bigint, updates bigint, step bigint, existing bigint) language sql as $$
    update changes
    set quantity = quantity + 1, note = md5(first_id::text || id::text) || 'note-new'
    where id in (select 1 + (first_id + n * step) % existing from generate_series(0, updates - 1) as n)
$$;

create procedure create_steady_tables(tables bigint, existing bigint) language plpgsql as $$
begin
    for number in 1 .. tables loop
        execute format('create table %I (like changes including all)', 'steady_' || number);
        execute format('insert into %I select * from make_rows(1, %s)', 'steady_' || number, existing);
    end loop;
end
$$;

-- One transaction: new rows behind the others, the oldest deleted, some in between updated.
create procedure write_steadily(
    name text, inserts bigint, updates bigint, deletes bigint, first_id bigint, next_id bigint, draw bigint
) language plpgsql as $$
begin
    execute format('insert into %I select * from make_rows($1, $2)', name) using next_id, next_id + inserts - 1;
    if updates > 0 then
        execute format(
            'update %I set quantity = quantity + 1, note = md5($1::text) || ''note-new'' where id in'
            ' (select $2 + (n * 7919 + $1) %% ($3 - $2) from generate_series(1, $4) as n)', name
        ) using draw, first_id + deletes, next_id, updates;
    end if;
    if deletes > 0 then
        execute format('delete from %I where id >= $1 and id < $2', name) using first_id, first_id + deletes;
    end if;
end
$$;
