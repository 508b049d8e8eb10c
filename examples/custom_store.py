"""Keeps state in a journal of one's own: python examples/custom_store.py penstock.yaml state.jsonl."""

import json
import os
import sys
import threading
from functools import partialmethod

from penstock import Lsn, MemoryDestination, MemoryStore, Pipeline, PipelineConfig, TableId, TableSchema
from penstock.model.phase import phase_from_json, phase_to_json


class Journal(MemoryStore):
    """Memory, and a file of all writes in order: opening it makes them again. The file only ever grows."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._order = threading.RLock()
        self._file = open(path, "a+b", buffering=0)  # noqa: PTH123, SIM115  # open for as long as the store is
        self._file.seek(0)
        whole, newline, _ = self._file.read().rpartition(b"\n")  # a crash may have cut the last line off
        self._file.truncate(len(whole + newline))
        for name, *arguments in map(json.loads, whole.splitlines()):
            getattr(super(), name)(*map(_decode, arguments))

    def _write(self, name: str, *arguments: object) -> object:
        with self._order:
            result = getattr(super(), name)(*arguments)
            plain = [each.to_json() if isinstance(each, TableSchema) else each for each in arguments]
            self._file.write(json.dumps([name, *plain], default=phase_to_json).encode() + b"\n")
            os.fsync(self._file)
            return result

    store_table_schema = partialmethod(_write, "store_table_schema")
    load_table_replication_states = partialmethod(_write, "load_table_replication_states")
    update_table_replication_state = partialmethod(_write, "update_table_replication_state")
    rollback_table_replication_state = partialmethod(_write, "rollback_table_replication_state")
    store_table_mapping = partialmethod(_write, "store_table_mapping")
    store_replication_progress = partialmethod(_write, "store_replication_progress")
    reset_replication_progress = partialmethod(_write, "reset_replication_progress")
    cleanup_table_state = partialmethod(_write, "cleanup_table_state")


def _decode(value: object) -> object:
    if not isinstance(value, dict):
        return value
    read = TableSchema.from_json if "columns" in value else phase_from_json
    return read(value) if value.keys() & {"columns", "type"} else {TableId(key): Lsn(value[key]) for key in value}


def main() -> None:
    """Copy, or go on, up to where the source is now."""
    pipeline = Pipeline(PipelineConfig.load(sys.argv[1]), store=Journal(sys.argv[2]), destination=MemoryDestination())
    pipeline.start()
    pipeline.wait_until_ready(pipeline.source_position())
    pipeline.shutdown_and_wait()


if __name__ == "__main__":
    main()
