"""What was looked through already, so that every object is read once however often what holds rows is asked.

Objects never change, so what was said of one stays right, but for records that tell a key and no row: such a record is
of a forgotten row once a row with its key was seen, which may be later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from storage_core.formats.generation_manifest import Generation
from storage_core.rows.keys import key_order

Directory = tuple[str, str]
"""A generation: its region, and its folder there."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Whether something holds rows, None where nobody can tell; `keys_at` is set where keys of later may change it."""

    holds: bool | None
    keys_at: int | None


@dataclass(slots=True, eq=False)
class Memory:
    """Answers about one condition over the rows of one table, by the name of what was looked through.

    `keys` are those of the rows that met the condition, of a table with the primary key `key`.
    """

    key: Sequence[str]
    generations: dict[Directory, Generation] = field(default_factory=dict)
    _answers: dict[str, _Answer] = field(default_factory=dict)
    _keys: list[pa.Table] = field(default_factory=list)
    _times: int = 0
    _is_open: bool = False

    def needs(self, name: str) -> bool:
        """Return whether it has to be looked through, for the first time or with keys that are new."""
        known = self._answers.get(name)
        if known is None:
            return True
        return not known.holds and known.keys_at is not None and known.keys_at < self._times

    def holds(self, name: str) -> bool | None:
        """Return what was said of it last, False for nothing."""
        known = self._answers.get(name)
        return False if known is None else known.holds

    def say(self, name: str, holds: bool | None) -> None:  # noqa: FBT001  # the answer is what is said
        """Remember an answer, which keys of later may change if it was left open."""
        self._answers[name] = _Answer(holds, self._times if self._is_open else None)
        self._is_open = False

    def leave_open(self) -> None:
        """Note that the next answer is about records too of which only keys tell whose they are."""
        self._is_open = True

    def add(self, keys: pa.Table) -> None:
        """Remember the keys of rows that met the condition."""
        self._keys.append(keys)

    @property
    def keys(self) -> pa.Table | None:
        """The keys so far; None for none."""
        return pa.concat_tables(self._keys) if self._keys else None

    def has_new_keys(self) -> bool:
        """Return whether keys came since this was asked last: then what was left open needs another look."""
        known = self.keys
        if known is None:
            return False
        before = self._keys[0].num_rows if self._times else 0
        order, begins = key_order(known, self.key)
        distinct = known.take(pa.array(order[begins])).combine_chunks()
        self._keys = [distinct]
        if distinct.num_rows == before:
            return False
        self._times += 1
        return True
