"""Registers the fixtures of every topic below tests/plugins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Whatever the import mode: plugins are modules of this folder, not of an installed package.
sys.path.insert(0, str(HERE))

# All of them before any: one may import another.
pytest.register_assert_rewrite("plugins")

pytest_plugins = sorted(f"plugins.{path.stem}" for path in (HERE / "plugins").glob("*.py"))
