"""Sends every row and change as JSON: python examples/http_destination.py penstock.yaml http://localhost:8000/."""

import json
import signal
import sys
from dataclasses import asdict, dataclass
from urllib.request import Request, urlopen

import penstock as ps


@dataclass(frozen=True)
class HttpDestination:
    """POSTs what it is given. It stores no position, so a change may come twice: its own position tells."""

    url: str
    name = "http"

    def startup(self) -> None:
        """Check nothing: the first write tells whether somebody listens."""

    def truncate_table(self, table: ps.TableId) -> None:
        """Tell that a copy begins: what was sent of this table no longer counts."""
        self._post(table, "begin_copy", [])

    def write_table_rows(self, table: ps.TableSchema, rows: ps.RowBatch) -> None:
        """Send a copy's rows, a bounded batch at a time."""
        for batch in rows.arrow():
            self._post(table.id, "rows", batch.to_pylist())

    def write_events(self, events: ps.EventBatch) -> None:
        """Send each table's changes; `_commit_lsn` and `_ordinal` are their order."""
        for table, changes in events.tables().items():
            self._post(table, "truncates", [asdict(truncate.position) for truncate in changes.truncates])
            for batch in changes.arrow():
                self._post(table, "changes", batch.to_pylist())

    def shutdown(self) -> None:
        """Release nothing: every request has its own connection."""

    def _post(self, table: ps.TableId, kind: str, rows: object) -> None:
        body = json.dumps({"table": table, "kind": kind, "rows": rows}, default=str).encode()
        try:
            urlopen(Request(self.url, body), timeout=30).close()  # noqa: S310  # the user's own URL
        except OSError as error:
            raise ps.DestinationError(f"no answer: {self.url}", kind=ps.ErrorKind.DESTINATION_UNAVAILABLE) from error


def main() -> None:
    """Replicate until told to stop."""
    config = ps.PipelineConfig.load(sys.argv[1])
    store = ps.SQLiteStore(".penstock/state.sqlite", config.id)
    pipeline = ps.Pipeline(config, store=store, destination=HttpDestination(sys.argv[2]))
    signal.signal(signal.SIGINT, lambda *_: pipeline.shutdown())
    pipeline.start()
    pipeline.wait()


if __name__ == "__main__":
    main()
