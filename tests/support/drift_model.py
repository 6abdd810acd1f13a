"""A model of landed JSON lines in plain Python. The model predicts the landed lines and the reasons of all rejections.

The model follows the rules in docs/declarations.md and shares no code with the product. The model contains only the
types of the simulated producers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.dirty_producers import Line

Place = tuple[str, int]
"""The file and the number of a line. The number is 0 if the complete file was rejected."""

WHOLE_FILES = "whole files"


def holds(type_: str, value: object) -> bool:
    """Return whether a column of this type can store the value."""
    is_flag, is_whole = isinstance(value, bool), isinstance(value, int)
    fits = {
        "string": True,
        "boolean": is_flag or (is_whole and value in (0, 1)),
        "double": isinstance(value, int | float) and not is_flag,
        "long": is_whole and not is_flag,
        "int": isinstance(value, int) and not is_flag and abs(value) < 2**31,
    }
    return fits[type_]


def narrowest(values: Collection[object]) -> str:
    """Return the type of a new column for these values."""
    fitting = (type_ for type_ in ("long", "double") if all(holds(type_, each) for each in values))
    return "boolean" if all(isinstance(each, bool) for each in values) else next(fitting, "string")


@dataclass
class Expected:
    """The expected effects of one run. `names` contains the fields and columns that drifted."""

    rows_out: int = 0
    rows_rejected: int = 0
    fields: Counter[str] = field(default_factory=Counter)
    added: dict[str, str] = field(default_factory=dict)
    widened: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    @property
    def rows_in(self) -> int:
        return self.rows_out + self.rows_rejected


@dataclass
class Model:
    """The expected table.

    - `columns`: the type of each column, in order.
    - `rows`: the fields of each line that is a row of the table. With the rule `column`, fields that are not columns
      are in `extra`.
    - `quarantine`: the text of each rejected line.
    """

    columns: dict[str, str]
    required: set[str]
    new_field: str
    widens: bool
    most_new: int
    rows: dict[Place, Line] = field(default_factory=dict)
    quarantine: dict[Place, str] = field(default_factory=dict)

    def ingest(self, files: Mapping[str, Sequence[str]]) -> Expected:
        """Add the lines of new files to the table or to the quarantine."""
        texts = {(file, number): text for file, lines in files.items() for number, text in enumerate(lines, 1)}
        lines = {place: parsed(text) for place, text in texts.items()}
        before, run = dict(self.columns), Expected()
        widest = {name: "long" if self.widens and type_ == "int" else type_ for name, type_ in before.items()}
        sound = {place: line for place, line in lines.items() if line is not None and self._fault(line, widest) is None}
        again = self._grow(sound, run)
        for place, line in lines.items():
            is_again = place[0] in again
            self._put(place, texts[place], line, self.columns if is_again else before, run, is_settled=is_again)
        return run

    def reject_whole(self, names: Iterable[str], run: Expected) -> None:
        """Reject files whose content has changed since they landed."""
        for name in names:
            self.quarantine[name, 0] = ""
            run.rows_rejected += 1
            run.names.add(WHOLE_FILES)

    def mend(self) -> list[str]:
        """Make a column of each unknown field, and accept wider integers and rows without a required text.

        Return the names of the new columns.
        """
        lines = [line for text in self.quarantine.values() if (line := parsed(text)) is not None]
        new = sorted({name for line in lines for name in line} - self.columns.keys())
        self.columns = {name: "long" if type_ == "int" else type_ for name, type_ in self.columns.items()}
        self.columns |= dict.fromkeys(new, "string")
        self.required, self.new_field, self.widens = {"id"}, "quarantine", False
        return new

    def retry(self) -> int:
        """Move the quarantined lines that are valid now into the table. Return the number of moved lines."""
        lines = {place: line for place, text in self.quarantine.items() if (line := parsed(text)) is not None}
        valid = {place: line for place, line in lines.items() if self._fault(line, self.columns) is None}
        self.rows |= valid
        self.quarantine = {place: text for place, text in self.quarantine.items() if place not in valid}
        return len(valid)

    def _grow(self, sound: Mapping[Place, Line], run: Expected) -> set[str]:
        """Add and widen columns for the lines without a fault. Return the files that the run reads again."""
        found: dict[str, list[object]] = {}
        again = set()
        for (file, _), line in sound.items():
            too_wide = {name for name in line if self.columns.get(name) == "int" and not holds("int", line[name])}
            run.widened |= too_wide
            new = [name for name in line if name not in self.columns] if self.new_field == "add" else []
            for name in new:
                found.setdefault(name, []).append(line[name])
            again |= {file} if too_wide or new else set()
        chosen = sorted(found, key=lambda name: (-len(found[name]), name))[: self.most_new]
        run.added = {name: narrowest(found[name]) for name in chosen}
        self.columns |= dict.fromkeys(run.widened, "long") | run.added
        run.names |= {f"column {name}" for name in run.widened} | {f"field {name}" for name in run.added}
        return again

    def _put(
        self, place: Place, text: str, line: Line | None, columns: Mapping[str, str], run: Expected, *, is_settled: bool
    ) -> None:
        fault = "" if line is None else self._fault(line, columns, is_settled=is_settled)
        if line is None or fault is not None:
            self.quarantine[place] = text
            run.rows_rejected += 1
            run.names |= {fault} if fault else set()
            return
        unknown = {name: value for name, value in line.items() if name not in columns}
        run.rows_out += 1
        run.fields.update(unknown.keys())
        run.names |= {f"field {name}" for name in unknown}
        kept = {"extra": unknown} if unknown and self.new_field == "column" else {}
        self.rows[place] = {name: value for name, value in line.items() if name in columns} | kept

    def _fault(self, line: Line, columns: Mapping[str, str], *, is_settled: bool = False) -> str | None:
        """Return the field or column that causes the rejection. A settled run does not add columns any more."""
        unknown = [name for name in line if name not in columns]
        if unknown and (self.new_field == "quarantine" or (self.new_field == "add" and is_settled)):
            return f"field {unknown[0]}"
        for name, type_ in columns.items():
            is_valid = holds(type_, line[name]) if name in line else name not in self.required
            if not is_valid:
                return f"column {name}"
        return None


def parsed(text: str) -> Line | None:
    """Return the line, or None if the text is not valid JSON."""
    try:
        found: Line = json.loads(text)
    except ValueError:
        return None
    return found
