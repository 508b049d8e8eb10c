"""The table of the destinations' suite, changed at random as a source would."""

from __future__ import annotations

import random
from typing import Any

from penstock.model.cell import UNCHANGED
from penstock.testing.destination_suite import ITEMS, Make, delete, insert, update


class ChangingItems:
    """A source that changes at random, keys included, and remembers what each row is."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows: dict[int, tuple[str, str | None]] = {}

    def change(self) -> Make:
        key = self.random.choice([*self.rows, self.random.randrange(60)])
        body = self.random.choice([None, "short", "toasted" * 3])
        if key not in self.rows:
            self.rows[key] = ("new", body)
            return insert(ITEMS, key, *self.rows[key])
        kind = self.random.random()
        if kind < 0.2:
            del self.rows[key]
            return delete(ITEMS, key)
        return self._update(key, body, self.random.randrange(60) if kind < 0.4 else key)

    def _update(self, old: int, body: str | None, new: int) -> Make:
        new = old if new in self.rows else new
        _name, former = self.rows.pop(old)
        is_kept = self.random.random() < 0.5
        name = f"n{self.random.randrange(9)}"
        self.rows[new] = (name, former if is_kept else body)
        given = UNCHANGED if is_kept else body
        return update(ITEMS, new, name, given, old=None if new == old else [old])

    def table(self) -> set[tuple[Any, ...]]:
        return {(key, *row) for key, row in self.rows.items()}
