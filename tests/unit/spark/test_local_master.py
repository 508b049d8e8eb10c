from __future__ import annotations

import pytest

from penstock.spark.session import SparkSettings, session_conf


@pytest.mark.parametrize(
    ("master", "patient"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://h:7077", "spark://h:7077"),
    ],
)
def test_a_task_is_tried_four_times_in_one_jvm_as_in_a_cluster(master: str, patient: str) -> None:
    assert session_conf(SparkSettings(master=master), "x")["spark.master"] == patient
