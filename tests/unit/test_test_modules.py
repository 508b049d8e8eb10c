"""The tests themselves can be collected, on a fresh clone as anywhere."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_two_modules_have_one_name() -> None:
    """Pytest knows modules by that alone, and which of two it finds depends on what was compiled before."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
