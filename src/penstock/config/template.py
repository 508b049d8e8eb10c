"""The commented configuration file that `penstock init` writes."""

from __future__ import annotations

from importlib import resources


def read_template() -> str:
    """Return the file's text: every setting with its default, and what must be filled in."""
    return (resources.files("penstock.config") / "template.yaml").read_text("utf-8")
