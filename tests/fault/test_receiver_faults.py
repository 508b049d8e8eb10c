"""A receiver killed at every step, a disk that is full, files that are damaged: no change lost, none twice."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from plugins.receiver import Capture, ReceiverProcess
from plugins.s3 import Bucket

from penstock.changelog.verification import Verification
from penstock.errors import ErrorKind
from penstock.testing.capture import leftovers
from penstock.testing.postgres import Database, wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

MOMENTS = (
    "changelog.after_claim=kill",
    "changelog.after_schema=kill",
    "changelog.after_file=kill@3",
    "changelog.after_data=kill@3",
    "storage.before_put=kill@5",
    "changelog.before_entry=kill@5",
    "changelog.after_entry=kill@9",
    "changelog.after_trim_header=kill@2",
    "changelog.after_trim_entry=kill@3",
    "receiver.after_spool=kill@5",
    "receiver.after_replayed=kill@2",
    "receiver.before_status=kill@5",
)
PAUSE_S = 0.1


class Writer:
    """Makes transactions of every kind, one after the other, until told to stop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.errors: list[BaseException] = []
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        assert not self.errors

    def _run(self) -> None:
        try:
            with self._database.connect() as connection:
                for work in itertools.cycle((SINGLE_ROWS, SEVERAL_ROWS, SINGLE_ROWS, STREAMED, ROLLED_BACK)):
                    if self._stopping.wait(PAUSE_S):
                        return
                    for statement in work:
                        connection.execute(statement)
        except BaseException as error:  # noqa: BLE001  # told by `stop`
            self.errors.append(error)


INSERT = "insert into t(v) select 'x' || g from generate_series(1, {}) as g"
SINGLE_ROWS = (
    INSERT.format(1),
    "update t set v = v || 'y' where id = (select max(id) from t)",
    INSERT.format(1),
    "delete from t where id = (select min(id) from t)",
)
SEVERAL_ROWS = ("begin", INSERT.format(20), "update t set v = 'z' where id > (select max(id) - 20 from t)", "commit")
STREAMED = (
    "begin",
    INSERT.format(500),
    "savepoint a",
    INSERT.format(500),
    "rollback to a",
    INSERT.format(500),
    "savepoint b",
    "delete from t where id % 2 = 0 and id > (select max(id) - 500 from t)",
    "release b",
    "commit",
)
ROLLED_BACK = ("begin", INSERT.format(1000), "rollback")


@contextmanager
def writing(database: Database) -> Iterator[None]:
    writer = Writer(database)
    try:
        yield
    finally:
        writer.stop()


def consume_until_killed(capture: Capture, receiver: ReceiverProcess) -> bool:
    """Read the log as a driver does, and say what it may forget, until there is nobody to say it to."""
    position = capture.consume()
    if receiver.is_running:
        try:
            receiver.send(position, position)
        except BrokenPipeError:
            return True
    return not receiver.is_running


@pytest.mark.parametrize("place", ["disk", pytest.param("bucket", marks=[pytest.mark.spark, pytest.mark.long])])
def test_a_receiver_killed_at_every_step_loses_and_repeats_nothing(
    capture: Capture, place: str, request: pytest.FixtureRequest
) -> None:
    database = capture.database
    if place == "bucket":
        capture.move_to(request.getfixturevalue("bucket"))
    database.execute(f"alter database {database.name} set logical_decoding_work_mem = '64kB'")
    capture.publish("create table t(id bigserial primary key, v text)")
    with writing(database):
        for moment in MOMENTS:
            receiver = capture.start(failpoints=moment, max_fill_ms=10, max_bytes=1 << 14)
            wait_until(lambda: consume_until_killed(capture, receiver), f"{moment} to come", 60)  # noqa: B023
            assert receiver.wait_for_end() == -9, (moment, receiver.events[-1:])
            receiver.close()
    receiver = capture.start()
    capture.wait_until_captured()
    assert receiver.stop() == 0
    capture.consume()
    assert capture.consumed == capture.sent()
    assert leftovers(capture.root, capture.folder) == set()


def lose_slot(capture: Capture) -> None:
    """Take the slot away from whoever has it."""
    database = capture.database
    active = "select active_pid from pg_replication_slots where slot_name = %s"
    database.execute(f"select pg_terminate_backend(({active}))", capture.slot)
    wait_until(lambda: database.execute(active, capture.slot) == [(None,)], "the slot to be free")


@pytest.mark.spark
@pytest.mark.parametrize("moment", ["changelog.before_entry", "changelog.after_trim_header"])
def test_a_receiver_that_wakes_after_another_took_its_place_in_a_bucket_is_refused(
    capture: Capture, bucket: Bucket, moment: str
) -> None:
    database = capture.database
    capture.move_to(bucket)
    capture.publish("create table t(id bigserial primary key, v text)")
    older = capture.start(failpoints=f"{moment}=stop@2", max_log_bytes=1 << 13)

    def is_halted() -> bool:
        database.execute(INSERT.format(3))
        older.send(capture.consume(), capture.watermark)
        return Path(f"/proc/{older.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    older.wait_for("started")
    wait_until(is_halted, f"{moment} to come", 60)
    lose_slot(capture)
    newer = capture.start()
    newer.wait_for("started")
    database.execute(INSERT.format(3))
    capture.wait_until_captured()
    os.kill(older.pid, signal.SIGCONT)
    assert older.wait_for_end() == 1
    assert {event["kind"] for event in older.heard("failed")} <= {
        "slot_in_use",
        "source_connection_failed",
        "source_shutdown",
    }
    database.execute(INSERT.format(3))
    capture.wait_until_captured()
    assert newer.stop() == 0
    capture.consume()
    assert capture.consumed == capture.sent()
    assert Verification(capture.folder).run() == []


@contextmanager
def small_disk(place: Path) -> Iterator[Callable[[int], None]]:
    """Lend a file system of one megabyte, and the means to enlarge it."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system")
    try:
        yield lambda mib: _run("mount", "-o", f"remount,size={mib}m", str(place))
    finally:
        _run("umount", "-l", str(place))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def test_a_full_disk_and_a_damaged_entry_are_named_and_nothing_is_lost_once_there_is_room(
    capture: Capture, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as enlarge:
        capture.root = tmp_path / "disk" / "log"
        capture.publish("create table t(id bigserial primary key, v text)")
        receiver = capture.start()
        receiver.wait_for("started")
        wait_until(lambda: fill(capture, receiver), "the disk to be full", 60)
        require_full_disk_named(capture, receiver)
        take_the_rest(tmp_path / "disk" / "others")
        require_full_disk_named(capture, capture.start())
        enlarge(64)
        receiver = capture.start()
        capture.wait_until_captured()
        assert receiver.stop() == 0
        capture.consume()
        assert capture.consumed == capture.sent()
        assert leftovers(capture.root) == set()
        last = max((capture.root / "entries").iterdir())
        damage(last)
        event = capture.start().wait_for("failed")
        assert ErrorKind(event["kind"]) is ErrorKind.LOG_DAMAGED
        assert f"entries/{last.name} fails its checksum" in event["message"]


def fill(capture: Capture, receiver: ReceiverProcess) -> bool:
    capture.database.execute("insert into t(v) select md5(random()::text) from generate_series(1, 1000) as g")
    return not receiver.is_running


def require_full_disk_named(capture: Capture, receiver: ReceiverProcess) -> None:
    event = receiver.wait_for("failed")
    receiver.wait_for_end()
    assert ErrorKind(event["kind"]) is ErrorKind.LOG_IO
    assert f"No space left on device: {capture.root}" in event["message"]
    assert Verification(capture.folder).run() == []


def take_the_rest(path: Path) -> None:
    """Leave no room at all: whether what the log did not need is enough for a start is a matter of luck."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def damage(path: Path) -> None:
    """Flip a bit."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
