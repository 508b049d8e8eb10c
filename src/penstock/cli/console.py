"""How the commands print: results on standard output, everything about progress on standard error."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

OK, WARNING, FAILED = "✓", "!", "✗"
_STYLES = {OK: "green", WARNING: "yellow", FAILED: "red"}
_UNITS = ("B", "kB", "MB", "GB", "TB")
_STEP = 1000
_FILE_WIDTH = 200
"""Of what is not a terminal: wide enough that no name is cut."""


def results() -> Console:
    """Return where results go; paths and names are neither highlighted nor wrapped."""
    return _console(stderr=False)


def progress() -> Console:
    """Return where a live view and remarks go."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    return console


def table(*names: str, numbers: tuple[str, ...] = ()) -> Table:
    """Return an empty table with columns of text, then of numbers."""
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        grid.add_column(name, no_wrap=True)
    for name in numbers:
        grid.add_column(name, justify="right", no_wrap=True)
    return grid


def print_json(data: Any) -> None:
    """Print a result for programs."""
    print(json.dumps(data, indent=2, ensure_ascii=False))  # noqa: T201


def mark(sign: str) -> Text:
    """Return a sign in its colour."""
    return Text(sign, _STYLES[sign])


def count(number: int) -> str:
    """Return a number with its thousands apart."""
    return f"{number:,}"


def size(number: float) -> str:
    """Return a number of bytes as people say it."""
    for unit in _UNITS[:-1]:
        if number < _STEP:
            return f"{number:.0f} {unit}" if unit == "B" or number >= _STEP / 10 else f"{number:.1f} {unit}"
        number /= _STEP
    return f"{number:.1f} {_UNITS[-1]}"
