"""Prints a table's changes with pandas: python examples/pandas_log.py .penstock/log public.orders."""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

METADATA = ["_op", "_commit_lsn", "_ordinal", "_commit_ts", "_xid"]


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of the log: a line of JSON, and a line with its checksum."""
    return json.loads(path.read_text().splitlines()[0])


def read_entries(log: Path) -> list[dict[str, Any]]:
    """Read the entries of whole transactions: an incomplete one counts if the next complete one is of its session."""
    counted: list[dict[str, Any]] = []
    session = None
    for path in sorted((log / "entries").glob("*.json"), reverse=True):
        entry = read_json(path)
        session = entry["session"] if entry["is_complete"] else session
        counted[:0] = [entry] if entry["session"] == session else []
    return counted


def read_file(log: Path, file: dict[str, Any], schema: dict[str, Any]) -> pd.DataFrame:
    """Read a table's changes from one file; in one that several tables share, values are the server's text."""
    rows = pd.read_parquet(log / file["path"])
    if not file["is_shared"]:
        return rows
    rows = rows[(rows["_table"] == file["table"]) & (rows["_version"] == file["version"])].reset_index(drop=True)
    names = [column["name"] for column in schema["columns"]]
    return pd.concat([pd.DataFrame(rows["_values"].tolist(), columns=names), rows[METADATA]], axis=1)


def read_changes(log: Path, table: str) -> pd.DataFrame:
    """Read a table's changes in order, of whole transactions only."""
    schemas = {path.stem: read_json(path) for path in (log / "schemas").glob("*.json")}
    [oid] = {each["id"] for each in schemas.values() if f"{each['schema']}.{each['name']}" == table}
    files = [file for entry in read_entries(log) for file in entry["files"] if file["table"] == oid]
    frames = [read_file(log, file, schemas[f"{oid}-{file['version']}"]) for file in files]
    return pd.concat(frames, ignore_index=True)


def main() -> None:
    """Print what the log has of the table."""
    print(read_changes(Path(sys.argv[1]), sys.argv[2]).to_string())


if __name__ == "__main__":
    main()
