"""What we write into a table's folder ourselves: rows, and the positions of rows that are gone, as Parquet files.

A file is on disk, with its name, before a commit refers to it, so that what a commit names survives it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.contract.batch import CopiedFile
from penstock.contract.files import Files
from penstock.failpoint import hit
from penstock.lake.key import Numbers
from penstock.lake.rewrite import Compression
from penstock.spark.parquet import describe_file
from penstock.storage.local import LOCAL, new_file
from penstock.wire.arrow import wrap

# The ids that Iceberg's specification reserves for the columns of position deletes.
_DELETE_COLUMNS: list[pa.Field[Any]] = [
    pa.field("file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": b"2147483546"}),
    pa.field("pos", pa.int64(), nullable=False, metadata={b"PARQUET:field_id": b"2147483545"}),
]
_DELETES = pa.schema(_DELETE_COLUMNS)


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Where a table's data files are."""

    location: str
    """As the table's metadata has it."""
    files: Files

    @property
    def path(self) -> str:
        """The same among the files."""
        return self.files.path(self.location)

    @classmethod
    def of(cls, table_location: str, files: Files = LOCAL) -> DataFolder:
        """Return a table's folder, which is made if it is not there."""
        folder = cls(f"{table_location.rstrip('/')}/data", files)
        files.make_folder(folder.path)
        return folder

    def named(self, file: CopiedFile) -> CopiedFile:
        """Return a file of the folder with its path as the table's metadata will have it."""
        return replace(file, path=f"{self.location}/{file.path.rpartition('/')[2]}")

    def write_rows(
        self, tables: Iterable[pa.Table], columns: pa.Schema, compression: Compression = "snappy"
    ) -> list[CopiedFile]:
        """Write rows as one file; none if there are no rows."""
        file = self._written("part", columns, tables, compression)
        if file.rows:
            hit("iceberg.rows_written")
            return [file]
        self.remove([file])
        return []

    def write_deletes(self, gone: Mapping[str, Numbers]) -> CopiedFile:
        """Write the positions of rows that are gone, by the file they are in; readers want both in order."""
        return self._written("deletes", _DELETES, (_deletes(name, gone[name]) for name in sorted(gone)))

    def remove(self, files: Iterable[CopiedFile]) -> None:
        """Remove files that no version of the table has."""
        for file in files:
            self.files.remove(self.files.path(file.path))

    def has_strangers(self, known: Collection[str], older_than_s: float) -> bool:
        """Whether there are files that were last written before a time, and are none of those known."""
        names = {path.rpartition("/")[2] for path in known}
        times = self.files.times(self.path)
        return any(name not in names and written_s < older_than_s for name, written_s in times.items())

    def _written(
        self, kind: str, columns: pa.Schema, tables: Iterable[pa.Table], compression: Compression = "snappy"
    ) -> CopiedFile:
        path = f"{self.path}/{kind}-{uuid.uuid4().hex}.parquet"
        described: list[pq.FileMetaData] = []
        with (
            new_file(self.files, path) as new,
            # Decimals as the format's specification has them: up to 18 digits as integers.
            pq.ParquetWriter(
                new.file, columns, compression=compression, metadata_collector=described, store_decimal_as_integer=True
            ) as out,
        ):
            # A row group without rows has no statistics, and would take the file's from it.
            for table in (each for each in tables if each.num_rows):
                out.write_table(table)
        return self.named(describe_file(path, new.size, described[0]))


def _deletes(name: str, places: Numbers) -> pa.Table:
    return pa.Table.from_arrays([pa.repeat(name, len(places)), wrap(np.sort(places), pa.int64())], schema=_DELETES)


def read_deletes(files: Files, path: str) -> Iterator[tuple[str, Numbers]]:
    """Yield the positions that a file of deletes has, by the file they are in."""
    table = pq.ParquetFile(files.open(path)).read(_DELETES.names)
    encoded: Any = table.column("file_path").combine_chunks().dictionary_encode()
    places: Any = table.column("pos").to_numpy()
    numbers = encoded.indices.to_numpy()
    for number, name in enumerate(encoded.dictionary.to_pylist()):
        yield name, places[numbers == number]
