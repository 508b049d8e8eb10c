"""One tree, one kind each, one remedy per kind."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.errors import REMEDIES, ConfigError, ErrorKind, PenstockError, Retry, SourceError

CLASSES = [cls for cls in (PenstockError, *PenstockError.__subclasses__()) if cls.__module__ == errors.__name__]


def test_every_kind_has_a_policy_and_a_remedy() -> None:
    assert set(REMEDIES) == set(ErrorKind)
    assert all(remedy.endswith(".") for _, remedy in REMEDIES.values())


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_stands_in_the_tree_that_is_drawn(cls: type[PenstockError]) -> None:
    assert errors.__doc__ is not None
    assert cls.__name__ in errors.__doc__
    assert cls.__name__.endswith("Error")
    assert cls("message").kind is cls.default_kind


def test_an_error_says_what_kind_what_happened_and_what_to_do() -> None:
    error = SourceError("the slot is gone", kind=ErrorKind.SLOT_MISSING)
    assert str(error) == error.message == "the slot is gone"
    assert error.retry is Retry.MANUAL
    assert error.remedy == REMEDIES[ErrorKind.SLOT_MISSING][1]


def test_a_remedy_of_its_own_wins() -> None:
    assert ConfigError("wrong", remedy="Do this.").remedy == "Do this."
