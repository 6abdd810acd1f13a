"""Arguments and results of `forget`: the raw logs to search, and the objects that still contain the rows.

For each object, the result contains the reason why the object still exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal

from storage_core.store.contract import ObjectStore
from storage_core.write.raw_log.history import Place, RawStore, opened


@dataclass(frozen=True, slots=True)
class RawTable:
    """A raw log with all of its stores, and the name of the table in its records."""

    table: str
    stores: Sequence[Place | RawStore]

    def opened(self) -> list[ObjectStore]:
        """Return the stores. No request."""
        return [store for store, _ in opened(self.stores)]


class KeptBy(StrEnum):
    """The reason why an object that contains the rows is kept."""

    TABLE = "table"
    """The table itself needs the object. `why` explains what to do."""
    VERSION = "version"
    """A retained version needs the object."""
    TAG = "tag"
    """A tag keeps the version of the object."""
    COLLECTOR = "collector"
    """Nothing needs the object. The collector deletes the object after the horizon."""
    RAW_LOG = "raw_log"
    """A raw log keeps the object.

    The chunk is not distributed, or not marked for collection, or the raw log was not searched.
    """
    LANDING = "landing"
    """The object is a landed file. Tidemark never changes landed files."""
    NOT_READ = "not_read"
    """The object cannot be read, or the condition cannot be evaluated on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A kept object, with the reason that keeps it. The object contains the rows, or may contain values of the rows.

    `until_ms` is the earliest time at which a daily collection deletes the object. `until_ms` is None if a person must
    act first (see `why`). `tag` and `version` identify a version in which the rows can be read, if there is one.
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
    """The result of a search of all objects at the time `at_ms`, at the newest version `version`.

    `since` is the version of the plan of the last `FORGET`. None means that there was no `FORGET`. Deleted objects of
    this version or an earlier version may have contained the rows. The report therefore assumes that metadata about a
    deleted object contains values of the forgotten rows. `objects` is the number of existing objects, in all stores.
    """

    version: int
    since: int | None
    at_ms: int
    objects: int
    held: tuple[Held, ...]

    @property
    def is_clean(self) -> bool:
        """Whether no object contains any of the rows."""
        return not self.held

    @property
    def until_ms(self) -> int | None:
        """The earliest time at which all these objects can be deleted without further work.

        None if a person must act first, or if no object holds rows.
        """
        times = [each.until_ms for each in self.held]
        known = [each for each in times if each is not None]
        return max(known) if known and len(known) == len(times) else None

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data, as commands and jobs print it (`docs/spec.md`, section 17).

        Omits the version.
        """
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
    """The outcome of `forget`.

    - `version`: the newest version after the call. This version contains none of the rows.
    - `commit_id`: the id of the `FORGET` commit. The id is empty if no commit was needed.
    - `rows`: the number of rows that this call deleted.
    - `splits_rewritten`: the number of splits that this call rewrote.
    """

    version: int
    commit_id: str = ""
    rows: int = 0
    splits_rewritten: int = 0
    report: ForgetReport

    @property
    def status(self) -> Literal["committed", "nothing_to_do"]:
        """The status in commands and jobs. `nothing_to_do` means that nothing was deleted or rewritten."""
        return "committed" if self.rows or self.commit_id else "nothing_to_do"
