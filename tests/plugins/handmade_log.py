"""Change logs written by hand, file by file: what the format allows, whether or not our writer does it today."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.changelog.entry import FORMAT, DataFile, Entry, data_name, encode_entry, with_checksum
from penstock.changelog.folder import Folder
from penstock.changelog.header import Header, put_header
from penstock.changelog.rows import convert_rows, footer_checksum, log_schema, pack_rows
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn, Position
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableId, TableSchema

COMMIT_TIME_US = 1_700_000_000_000_000
_SESSION = "00000000"
XID = 7


@dataclass(frozen=True, slots=True)
class Row:
    """One change, its values as the server prints them."""

    commit_lsn: int
    ordinal: int
    values: Sequence[str | None]
    op: str = "I"
    key: Sequence[str | None] | None = None
    before: Sequence[str | None] | None = None
    unchanged: list[str] | None = None


class HandmadeLog:
    """A log of a test's own."""

    def __init__(self, root: Path, start_lsn: int = 0x100, system_identifier: str = "1") -> None:
        self.root = root
        self.end_lsn = start_lsn
        self.system_identifier = system_identifier
        self._sequence = 1
        self._headers, self._first_sequence = 0, 1
        self._versions: dict[TableId, int] = {}
        for name in ("schemas", "data", "entries"):
            (root / name).mkdir(parents=True)
        self._write_header(start_lsn)

    def define(self, schema: TableSchema) -> int:
        """Record a new version of a table's columns."""
        version = self._versions[schema.id] = self._versions.get(schema.id, 0) + 1
        content = with_checksum({"format": FORMAT, **schema.to_json()})
        (self.root / "schemas" / f"{schema.id:d}-{version}.json").write_bytes(content)
        return version

    def append(
        self,
        schema: TableSchema,
        rows: Sequence[Row] = (),
        *,
        truncates: Sequence[tuple[int, int]] = (),
        form: str = "own",
        end_lsn: int | None = None,
        is_complete: bool = True,
    ) -> None:
        """Write an entry with a table's rows at its newest version; `form` is own, shared or problem."""
        positions = [(row.commit_lsn, row.ordinal) for row in rows] + list(truncates)
        last = max((lsn for lsn, _ in positions), default=self.end_lsn)
        end = end_lsn or last + 1
        folder = self.root / "data" / data_name(self._sequence, _SESSION)
        folder.mkdir()
        files = (self._write_rows(schema, rows, form),) if rows else ()
        commits = sorted({lsn for lsn, _ in positions}) if is_complete else []
        self._write_transactions(commits)
        emptied = [Truncate(Position(Lsn(lsn), ordinal), (schema.id,), False, False) for lsn, ordinal in truncates]
        entry = Entry(
            sequence=self._sequence,
            session=_SESSION,
            written_us=COMMIT_TIME_US,
            is_complete=is_complete,
            start_lsn=Lsn(self.end_lsn),
            end_lsn=Lsn(end if is_complete else self.end_lsn),
            transactions=len(commits),
            transactions_file=f"data/{folder.name}/transactions.parquet",
            files=files,
            truncates=tuple(emptied),
        )
        (self.root / "entries" / entry.name).write_bytes(encode_entry(entry))
        self._sequence += 1
        self.end_lsn = int(entry.end_lsn)

    def trim(self, entries: int, start_lsn: int) -> None:
        """Remove the first entries, as a writer does: the start moves first."""
        self._first_sequence = entries + 1
        self._write_header(start_lsn)
        for sequence in range(1, entries + 1):
            (self.root / "entries" / f"{sequence:012d}.json").unlink()
            for file in (self.root / "data" / data_name(sequence, _SESSION)).iterdir():
                file.unlink()

    def _write_header(self, start_lsn: int) -> None:
        self._headers += 1
        number, first = self._headers, self._first_sequence
        header = Header("s", self.system_identifier, Lsn(start_lsn), number=number, first_sequence=first)
        assert put_header(Folder.on_disk(self.root), header)

    def _write_rows(self, schema: TableSchema, rows: Sequence[Row], form: str) -> DataFile:
        version = self._versions[schema.id]
        text = _text(schema, rows)
        contents: dict[str, Callable[[], pa.Table]] = {
            "own": lambda: pa.Table.from_batches([convert_rows(text, schema, ValuePolicies())]),
            "problem": lambda: pa.Table.from_batches([text]),
            "shared": lambda: _among_others(pack_rows(pa.Table.from_batches([text]), schema, version)),
        }
        name = "shared" if form == "shared" else f"{schema.id:d}-{version}"
        path = f"data/{data_name(self._sequence, _SESSION)}/{name}.parquet"
        pq.write_table(contents[form](), self.root / path)
        return DataFile(
            table=schema.id,
            version=version,
            path=path,
            rows=len(rows),
            size_bytes=(self.root / path).stat().st_size,
            inserts=sum(row.op == "I" for row in rows),
            updates=sum(row.op == "U" for row in rows),
            deletes=sum(row.op == "D" for row in rows),
            has_unchanged=any(row.unchanged for row in rows),
            has_key_changes=any(row.key for row in rows),
            first_lsn=Lsn(min(row.commit_lsn for row in rows)),
            last_lsn=Lsn(max(row.commit_lsn for row in rows)),
            footer_crc=footer_checksum(pa.OSFile(str(self.root / path), "rb")) or 0,
            problem="a value could not be converted" if form == "problem" else None,
            is_shared=form == "shared",
        )

    def _write_transactions(self, commits: Sequence[int]) -> None:
        moments = pa.array([COMMIT_TIME_US] * len(commits), pa.timestamp("us", "UTC"))
        columns = {"commit_lsn": commits, "end_lsn": [lsn + 1 for lsn in commits], "xid": [XID] * len(commits)}
        table = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
        path = self.root / "data" / data_name(self._sequence, _SESSION) / "transactions.parquet"
        pq.write_table(table.append_column("commit_ts", moments), path)


def _text(schema: TableSchema, rows: Sequence[Row]) -> pa.RecordBatch:
    wanted = log_schema(schema, as_text=True)
    columns: list[Any] = [[row.values[index] for row in rows] for index in range(len(schema.columns))]
    columns += [[row.op for row in rows], [row.commit_lsn for row in rows], [row.ordinal for row in rows]]
    columns += [[COMMIT_TIME_US] * len(rows), [XID] * len(rows)]
    for name, values in (("_key", [row.key for row in rows]), ("_before", [row.before for row in rows])):
        if name in wanted.names:
            fields: Any = wanted.field(name).type
            names = [field.name for field in fields]
            columns.append([each and dict(zip(names, each, strict=True)) for each in values])
    columns.append([row.unchanged for row in rows])
    arrays = [pa.array(values, field.type) for values, field in zip(columns, wanted, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _among_others(packed: pa.Table) -> pa.Table:
    """Put another table's rows before and behind, as in a file that several tables share."""
    index = packed.schema.get_field_index("_table")
    others = packed.set_column(index, "_table", pa.array([999_999] * len(packed), pa.int64()))
    return pa.concat_tables([others, packed, others])


@pytest.fixture
def handmade_log(tmp_path: Path) -> HandmadeLog:
    return HandmadeLog(tmp_path / "log")
