"""Structured logging: a constant phrase per event, data in fields, never a row's values, never a secret.

Lines go to standard error: for people when that is a terminal, as JSON otherwise.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure_logging(*, level: str = "info", as_json: bool | None = None) -> None:
    """Set up logging for a process."""
    is_terminal = sys.stderr.isatty()
    as_json = not is_terminal if as_json is None else as_json
    renderer: Any = structlog.processors.JSONRenderer()
    if not as_json:
        renderer = structlog.dev.ConsoleRenderer(colors=is_terminal)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if as_json else _keep,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def get_logger(**fields: object) -> Any:
    """Return a logger with fields bound to it."""
    return structlog.get_logger().bind(**fields)


def _keep(_logger: Any, _method: str, event: Any) -> Any:
    return event
