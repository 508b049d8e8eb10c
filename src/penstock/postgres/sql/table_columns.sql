-- The key is what tells rows apart in the stream. One that is deferrable does not: within a transaction two rows may
-- have it, as when two swap theirs in one statement.
-- An int2vector counts from 0, so a column's subscript in indkey is its place in the key. Columns that
-- the index only includes come behind indnkeyatts. A NOT NULL that was never validated (18+) promises nothing.
select
    a.attnum,
    a.attname,
    a.atttypid::bigint,
    a.atttypmod,
    not a.attnotnull or exists (
        select
        from pg_catalog.pg_constraint as r
        where r.conrelid = a.attrelid and r.contype = 'n' and not r.convalidated and r.conkey = array[a.attnum]
    ),
    a.attgenerated <> '',
    case when i.place < i.indnkeyatts then i.place end
from pg_catalog.pg_class as c
join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join lateral (
    select x.indnkeyatts, pg_catalog.array_position(x.indkey::int2[], a.attnum) as place
    from pg_catalog.pg_index as x
    where
        x.indrelid = c.oid
        and x.indislive
        and case c.relreplident
            when 'i' then x.indisreplident
            when 'n' then false
            else x.indisprimary and x.indimmediate
        end
) as i on true
where c.oid = %(table)s
order by a.attnum
