select p.pubinsert and p.pubupdate and p.pubdelete
from pg_catalog.pg_publication as p
where p.pubname = %(publication)s
