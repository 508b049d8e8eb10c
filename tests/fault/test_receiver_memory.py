"""What the receiver takes stays within its bound when its log is in a bucket, where files wait for their upload."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugins.receiver import Capture
from plugins.s3 import Bucket

from penstock.changelog.visitor import open_log
from penstock.testing.postgres import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

BOUND_MIB = 512
# Text that zstd makes little of: what is uploaded is nearly as large as what was received.
NOISE = "(select string_agg(md5(random()::text || n || g), '') from generate_series(1, {}) n)"


def peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def test_large_transactions_and_rows_stay_within_the_bound_in_a_bucket(capture: Capture, bucket: Bucket) -> None:
    capture.move_to(bucket)
    tables = "; ".join(f"create table t{number}(id bigserial primary key, v text)" for number in range(8))
    capture.publish(tables)
    database = capture.database
    receiver = capture.start(max_fill_ms=1000)
    receiver.wait_for("started")
    for number in range(8):
        database.execute(f"insert into t{number}(v) select {NOISE.format(30)} from generate_series(1, 40000) g")
    many = ", ".join(f"i{n} as (insert into t{n}(v) select v from t{n} limit 8000)" for n in range(8))
    database.execute(f"with {many} select 1")
    database.execute("insert into t0(v) select string_agg(v, '') from t1 where id <= 30000")
    capture.wait_until_captured()
    wait_until(lambda: open_log(capture.folder).size_bytes > 100 << 20, "the log to have it all")
    peak = peak_mib(receiver.pid)
    assert receiver.stop() == 0
    print("peak", round(peak), "MiB")  # noqa: T201
    assert peak <= BOUND_MIB
