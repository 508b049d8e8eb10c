"""Errors on their way through Spark, which passes on nothing but their text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError


@contextmanager
def as_spark_shows() -> Iterator[None]:
    """Put the remedy into an error's message: text is all that Spark passes on."""
    try:
        yield
    except PenstockError as error:
        message = f"{error.message.rstrip('.')}. {error.remedy}"
        raise PenstockError(message, kind=error.kind, remedy=error.remedy) from None
