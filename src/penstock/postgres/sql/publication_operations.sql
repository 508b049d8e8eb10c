select p.pubupdate or p.pubdelete
from pg_catalog.pg_publication as p
where p.pubname = %(publication)s
