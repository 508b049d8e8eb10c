"""Whether a replicator runs is told by its lock, not by a file that it may have left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from penstock.cli.liveness import replicator_pid
from penstock.runtime.lock import LOCK_FILE_NAME, lock_state_dir


def test_the_holder_of_the_lock_is_found_until_it_lets_go(tmp_path: Path) -> None:
    with lock_state_dir(tmp_path):
        assert replicator_pid(tmp_path) == os.getpid()
    assert replicator_pid(tmp_path) is None


def test_a_folder_that_is_not_there_has_no_replicator(tmp_path: Path) -> None:
    assert replicator_pid(tmp_path / "nowhere") is None


def test_what_a_dead_process_left_behind_counts_for_nothing(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / LOCK_FILE_NAME).write_text(str(dead.pid))
    assert replicator_pid(tmp_path) is None


def test_a_live_process_without_the_lock_is_no_replicator(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE_NAME).write_text(str(os.getpid()))
    assert replicator_pid(tmp_path) is None
    with lock_state_dir(tmp_path):
        """Asking has not kept the lock."""
