"""Prints the rows that a table's changes lead to, by DuckDB: python examples/duckdb_log.py .penstock/log public.orders.

For a table of one version whose keys never change, that has no large values and is not truncated.
"""

import json
import sys
from pathlib import Path
from typing import Any

import duckdb

# Files that several tables share have text, which DuckDB reads as Postgres prints it.
TYPES = {"int2": "smallint", "int4": "integer", "int8": "bigint", "oid": "bigint", "float4": "float", "bool": "boolean"}
TYPES |= {"float8": "double", "date": "date", "timestamp": "timestamp", "timestamptz": "timestamptz", "text": "varchar"}
PART = "select {values}, _op, _commit_lsn, _ordinal from read_parquet({files}) where {condition}"
CURRENT = """
select {names} from ({changes})
qualify row_number() over (partition by {key} order by _commit_lsn desc, _ordinal desc) = 1 and _op <> 'D'
order by {key}"""


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of the log: a line of JSON, and a line with its checksum."""
    return json.loads(path.read_text().splitlines()[0])


def quoted(column: dict[str, Any]) -> str:
    """Return a column's name in SQL."""
    return '"' + column["name"].replace('"', '""') + '"'


def from_text(number: int, column: dict[str, Any]) -> str:
    """Return the value of a column in a shared file, typed."""
    kind, precision, scale = (column["type"][name] for name in ("kind", "precision", "scale"))
    type_ = f"decimal({precision}, {scale})" if kind == "numeric" and precision else TYPES.get(kind, "varchar")
    return f"_values[{number}]::{type_} as {quoted(column)}"


def main() -> None:
    """Print the newest row of every key."""
    log, table = Path(sys.argv[1]), sys.argv[2]
    schemas = [read_json(path) for path in (log / "schemas").glob("*.json")]
    [schema] = [each for each in schemas if f"{each['schema']}.{each['name']}" == table]
    files, session = [], None
    for entry in map(read_json, sorted((log / "entries").glob("*.json"), reverse=True)):
        session = entry["session"] if entry["is_complete"] else session  # whose incomplete entries before it count
        files += [file for file in entry["files"] if entry["session"] == session and file["table"] == schema["id"]]
    own, shared = ([str(log / f["path"]) for f in files if f["is_shared"] is sharing] for sharing in (False, True))
    names = ", ".join(map(quoted, schema["columns"]))
    values = ", ".join(from_text(number, column) for number, column in enumerate(schema["columns"], start=1))
    parts = [PART.format(values=names, files=own, condition="true")] if own else []
    parts += [PART.format(values=values, files=shared, condition=f"_table = {schema['id']}")] if shared else []
    key = ", ".join(quoted(column) for column in schema["columns"] if column["key_ordinal"] is not None)
    for row in duckdb.sql(CURRENT.format(names=names, key=key, changes=" union all ".join(parts))).fetchall():
        print(*row)


if __name__ == "__main__":
    main()
