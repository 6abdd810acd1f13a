"""The settings of the compaction policy, and their form in `metaData.configuration` (docs/architecture/compaction.md,
"Policy").
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from storage_core.clock import HOUR_MS
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.settings.json_text import json_object, json_text

COMPACTION_KEY = "tidemark.compaction"

MOST_GENERATIONS = 999_999
"""The most generations that can be set: splits of a sorted run record greater numbers of merges (decision 0069)."""

MOST_RUN_INPUTS = 256
"""The most splits that one merge reads, whatever it is for: each is an open file and a batch of rows in memory."""


MOST_COARSE_SECONDS = 366 * 86_400
"""The longest windows that cold ones may be joined to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When the splits of a window are merged with each other (`compaction.policy`). Durations are in ms.

    `factor` splits of one generation make a merge, of at most `most_inputs`; a split that went through `generations`
    merges is mature. A window is cold `cold_after_ms` after its end; a split waits for younger ones to be merged with
    for `mature_after_ms`. A cold window is finalized when more than `most_files` of its splits are outside its sorted
    run. A task reads at most `run_rows` rows, each of which takes about 120 bytes of memory (decision 0073).
    Windows that start before `start` (seconds since the epoch) are never compacted (CS-3). Windows of `coarsen_to`
    seconds, whole hours, take the splits of shorter ones from `coarsen_after_ms` after their end on (decision 0148).
    """

    factor: int = 10
    most_inputs: int = 12
    generations: int = 4
    most_files: int = 24
    cold_after_ms: int = HOUR_MS
    mature_after_ms: int = 48 * HOUR_MS
    run_rows: int = 2**25
    start: int | None = None
    coarsen_after_ms: int = 30 * 24 * HOUR_MS
    coarsen_to: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings by which no merge would ever be made, none would ever end, or one would be too large."""
        least = {"factor": 2, "most_inputs": self.factor, "generations": 1, "most_files": 1}
        least |= {"cold_after_ms": 0, "mature_after_ms": 0, "run_rows": 1, "coarsen_after_ms": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise InvalidInput(f"compaction {name} is {getattr(self, name)}; it must be at least {bound}")
        if self.coarsen_to is not None and not is_coarse(self.coarsen_to):
            raise InvalidInput(
                f"compaction coarsen_to is {self.coarsen_to} s; it must be whole hours, at most 366 days",
            )
        for name, bound in (("most_inputs", MOST_RUN_INPUTS), ("generations", MOST_GENERATIONS)):
            if getattr(self, name) > bound:
                raise InvalidInput(f"compaction {name} is {getattr(self, name)}; it must be at most {bound}")

    def to_text(self) -> str:
        """Return the settings that differ from their defaults as compact JSON with sorted keys."""
        changed = {each.name: getattr(self, each.name) for each in fields(self)}
        changed = {name: value for name, value in changed.items() if value != getattr(CompactionSettings(), name)}
        return json_text(dict(sorted(changed.items())))

    @staticmethod
    def from_text(text: str) -> CompactionSettings:
        """Return the settings that `to_text` wrote. Raises `InvalidInput` naming the one that is unknown or no number.

        A setting that this release does not know would change what is merged, so it is not left alone.
        """
        body: dict[str, Any] = json_object(COMPACTION_KEY, text)
        known = {each.name for each in fields(CompactionSettings)}
        if not known >= body.keys():
            raise InvalidInput(
                f"{COMPACTION_KEY}: expected an object of {', '.join(sorted(known))}; found {quoted(text)}",
                key=COMPACTION_KEY,
            )
        for name, value in body.items():
            if type(value) is not int:
                raise InvalidInput(f"{COMPACTION_KEY}: {name} is {value!r}, not a whole number", key=COMPACTION_KEY)
        return CompactionSettings(**body)


def is_coarse(seconds: int) -> bool:
    """Whether windows of this duration may take the splits of shorter ones."""
    return seconds % 3600 == 0 and 0 < seconds <= MOST_COARSE_SECONDS
