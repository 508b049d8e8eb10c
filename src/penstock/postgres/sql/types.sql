-- unnest of several arrays is syntax, which a qualified name would not be.
-- Only a type that its element names as its array type is printed as an array: int2vector, for one, is not.
select
    w.oid::bigint,
    w.typmod,
    pg_catalog.format_type(w.oid, w.typmod),
    case when t.typtype = 'd' then t.typbasetype::bigint end,
    t.typtypmod,
    e.oid::bigint
from unnest(%(oids)s::oid[], %(typmods)s::int4[]) as w (oid, typmod)
join pg_catalog.pg_type as t on t.oid = w.oid
left join pg_catalog.pg_type as e on e.oid = t.typelem and e.typarray = t.oid
