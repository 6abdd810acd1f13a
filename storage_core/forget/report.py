"""What still holds rows that are to be forgotten: object by object, why it is there, and until when."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal


class KeptBy(StrEnum):
    """What keeps an object that holds rows."""

    TABLE = "table"
    """The table itself needs it; `why` says what to do."""
    VERSION = "version"
    """A version that is retained needs it."""
    TAG = "tag"
    """A tag keeps its version."""
    COLLECTOR = "collector"
    """Nothing needs it: the collector takes it when it has been so for long enough."""
    RAW_LOG = "raw_log"
    """A raw log keeps it: not distributed, not noted for collection, or not looked through."""
    LANDING = "landing"
    """A landed file has it, which Tidemark never changes."""
    NOT_READ = "not_read"
    """It cannot be read, or the condition cannot tell whether it holds a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An object of the table or a raw log that holds rows, or may hold values of them, and what keeps it.

    `until_ms` is the earliest time at which a collection that runs daily deletes it; None where that waits for somebody
    to do what `why` says. Of `tag` and `version` those that show the rows.
    """

    store: str
    key: str
    kind: str
    by: KeptBy
    why: str
    until_ms: int | None = None
    tag: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetReport:
    """What a search of all objects found at `at_ms`; at `version` of the table, the newest.

    `since` is the version that the last `FORGET` was planned on, the one before it; None: never forgotten. What is gone
    and was named up to it may have held rows, so metadata about it counts as holding values of them. `objects` were
    there, in all stores.
    """

    version: int
    since: int | None
    at_ms: int
    objects: int
    held: tuple[Held, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing holds any of the rows."""
        return not self.held

    @property
    def until_ms(self) -> int | None:
        """When the last of it can be gone by itself; None where something waits for somebody, or nothing is held."""
        times = [each.until_ms for each in self.held]
        known = [each for each in times if each is not None]
        return max(known) if known and len(known) == len(times) else None

    def to_dict(self) -> dict[str, object]:
        """Return it without its version as plain data, as commands and jobs print it (`docs/spec.md`, section 17)."""
        return {
            "is_clean": self.is_clean,
            "since": self.since,
            "at_ms": self.at_ms,
            "until_ms": self.until_ms,
            "objects": self.objects,
            "held": [{**asdict(each), "by": each.by.value} for each in self.held],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What `forget` did: `rows` were deleted now, and `splits_rewritten`; the newest version holds none of them.

    `commit_id` is that of the commit `FORGET` (empty: none was needed), `version` the newest one after it.
    """

    version: int
    commit_id: str = ""
    rows: int = 0
    splits_rewritten: int = 0
    report: ForgetReport

    @property
    def status(self) -> Literal["committed", "nothing_to_do"]:
        """What commands and jobs call it: `committed`, or `nothing_to_do` where nothing was deleted or rewritten."""
        return "committed" if self.rows or self.commit_id else "nothing_to_do"
