-- oldest first, following the links back from the current phase
with recursive chain (id, phase, prev, depth) as (
    select id, phase, prev, 0
    from table_phase
    where pipeline_id = :pipeline and table_id = :table and is_current = 1
    union all
    select earlier.id, earlier.phase, earlier.prev, chain.depth + 1
    from chain
    join table_phase as earlier on earlier.id = chain.prev
)
select id, phase from chain order by depth desc
