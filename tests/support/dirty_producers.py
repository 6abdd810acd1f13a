"""Producers that send JSON lines with changing fields, broken lines and repeated files. The producers use a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Line = dict[str, Any]

LINES = 20
"""The number of lines of a file."""

BROKEN = 0.05
"""The share of broken lines on a bad day."""

_VALUES: dict[str, Callable[[int], Any]] = {
    "small": lambda number: number % 1000,
    "wide": lambda number: 2**40 + number,
    "part": lambda number: number + 0.25,
    "text": lambda number: f"text {number}",
    "flag": lambda number: number % 2 == 0,
    "deep": lambda number: {"a": [number, None]},
}


@dataclass
class Producer:
    """A producer. `fields` contains the kind of each optional field that the producer sends."""

    drawn: random.Random
    name: str
    fields: dict[str, str] = field(default_factory=lambda: {"n": "small", "note": "text"})
    names: int = 0

    def drift(self) -> None:
        """Add, drop, rename or retype a field, or correct all fields."""
        known = sorted(self.fields)
        change = self.drawn.choice(["add", "add", "drop", "rename", "retype", "retype", "heal"]) if known else "heal"
        chosen = self.drawn.choice(known) if known else ""
        if change == "heal":
            self.heal()
        elif change == "add":
            self.names += 1
            self.fields[f"{self.name}{self.names}"] = self.drawn.choice(sorted(_VALUES))
        elif change == "drop":
            del self.fields[chosen]
        elif change == "rename":
            self.fields[f"{chosen}_{self.name}"] = self.fields.pop(chosen)
        else:
            self.fields[chosen] = self.drawn.choice(["small", "wide", "text", "part"])

    def heal(self) -> None:
        """Send only the fields of the declaration."""
        self.fields = {"n": "small", "note": "text"}

    def line(self, number: int, *, with_site: bool) -> Line:
        """Return a line. Every fifth line has no optional field. Without `with_site`, the line has no field `site`."""
        site = {"site": self.name} if with_site else {}
        return {
            "id": number,
            **site,
            **{name: _VALUES[kind](number) for name, kind in self.fields.items() if number % 5},
        }


@dataclass(frozen=True)
class Day:
    """The files of a day by name, each with its lines.

    - `landed`: new files. Some new files are copies of older files under a new name.
    - `same`: files of earlier days that are written again with their old content.
    - `replaced`: older files that get another content.
    """

    landed: Mapping[str, Sequence[str]]
    same: Mapping[str, Sequence[str]]
    replaced: Mapping[str, Sequence[str]]


@dataclass
class Course:
    """The changes and files of a month. A random number generator selects the changes and files."""

    drawn: random.Random
    producers: Sequence[Producer]
    days: int
    quiet: int = 3
    number: int = 0
    files: dict[str, Sequence[str]] = field(default_factory=dict)

    def day(self, day: int) -> Day:
        """Return the next day. In the last days (`quiet` is their number), all lines fit the declaration."""
        is_quiet = day >= self.days - self.quiet
        landed: dict[str, Sequence[str]] = {}
        for producer in self.producers:
            if is_quiet:
                producer.heal()
            elif day and self.drawn.random() < 0.35:
                producer.drift()
            is_bad, is_careless = (not is_quiet and self.drawn.random() < share for share in (0.08, 0.04))
            for part in range(self.drawn.choice([1, 1, 2])):
                name = f"{day:02}-{producer.name}-{part}.ndjson"
                landed[name] = self._lines(producer, is_bad=is_bad, with_site=not is_careless)
        older = sorted(self.files)
        copied, same, replaced = ([] if is_quiet else self._some(older, share) for share in (0.1, 0.15, 0.06))
        landed |= {f"{day:02}-copy-of-{name}": self.files[name] for name in copied}
        again = {name: self.files[name] for name in same if name not in replaced}
        changed = {name: [*self.files.pop(name), f'{{"id": {-day}}}'] for name in replaced}
        self.files |= landed
        return Day(landed, again, changed)

    def _some(self, names: Sequence[str], share: float) -> list[str]:
        return self.drawn.sample(names, 1) if names and self.drawn.random() < share else []

    def _lines(self, producer: Producer, *, is_bad: bool, with_site: bool) -> list[str]:
        texts = []
        for _ in range(LINES):
            self.number += 1
            text = json.dumps(producer.line(self.number, with_site=with_site))
            texts.append(text[: len(text) // 2] if is_bad and self.drawn.random() < BROKEN else text)
        return texts
