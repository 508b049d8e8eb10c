"""How properties are tested: no deadline per example, because a busy machine is no counterexample."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")
