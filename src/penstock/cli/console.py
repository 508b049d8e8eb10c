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
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
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


def terminal_width() -> int | None:
    """Return how many characters a line of results can have; None where they do not go to a terminal."""
    console = results()
    return console.width if console.is_terminal else None


def cut(line: str, width: int | None) -> str:
    """Return a line that fits."""
    if width is None:
        return line
    text = Text(line)
    text.truncate(width, overflow="ellipsis")
    return text.plain


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


def duration(seconds: float) -> str:
    """Return a span of time as people say it, no more exactly than they care to know."""
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02} s"
    minutes = whole // _MINUTE_S
    if whole < _DAY_S:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"
