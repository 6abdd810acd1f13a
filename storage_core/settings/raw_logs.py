"""The raw logs whose rows a table takes, and their form in `metaData.configuration` (decision 0144)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.repeated import repeated
from storage_core.settings.json_text import json_text, json_value

RAW_LOGS_KEY: Final = "tidemark.rawLogs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingRawLog:
    """One raw log as a reader of the table finds it: where it is, and as which `table` its records name this one.

    `stores` are the mandatory ones, each of which has every acknowledged chunk, `optional` the others. `unique_for_ms`
    and `closed_after_ms` are those that it is distributed with; None stands for the usual ones.
    """

    name: str
    table: str
    stores: tuple[str, ...]
    optional: tuple[str, ...] = ()
    unique_for_ms: int | None = None
    closed_after_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse a raw log without a place, and values of other types."""
        texts = (self.name, self.table, *self.stores, *self.optional)
        if not self.stores or not all(each and type(each) is str for each in texts):
            raise InvalidInput(f"a raw log has a name, the name of the table in it, and stores; found {self}")
        for ms in (self.unique_for_ms, self.closed_after_ms):
            if ms is not None and (type(ms) is not int or ms < 0):
                raise InvalidInput(f"raw log {self.name!r}: {ms!r} is not a number of milliseconds")

    @classmethod
    def of(cls, given: object) -> FeedingRawLog:
        """Return the raw log whose fields these are. Raises `InvalidInput` for all else."""
        known = {each.name for each in fields(cls)}
        if not isinstance(given, Mapping) or not {"name", "table", "stores"} <= given.keys() <= known:
            raise InvalidInput(f"a raw log is a mapping with name, table and stores, found {quoted(given)}")
        return cls(**{**given, **{name: _texts(name, given.get(name, ())) for name in ("stores", "optional")}})

    def moved(self, move: Callable[[str], str]) -> FeedingRawLog:
        """Return it with every place as `move` returns it."""
        return replace(self, stores=tuple(map(move, self.stores)), optional=tuple(map(move, self.optional)))

    def shown(self) -> dict[str, Any]:
        """Return plain data from which `of` makes it again; what is usual is left out."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: _plain(value) for name, value in found.items() if value not in (None, ())}


def raw_logs_of(given: object) -> tuple[FeedingRawLog, ...]:
    """Return the raw logs in a list of mappings of their fields. Raises `InvalidInput`."""
    if not isinstance(given, list | tuple):
        raise InvalidInput(f"raw_logs are a list of mappings with name, table and stores, found {quoted(given)}")
    found = tuple(each if isinstance(each, FeedingRawLog) else FeedingRawLog.of(each) for each in given)
    if twice := repeated(each.name for each in found):
        raise InvalidInput(f"raw log {twice[0]!r} is given twice; give each once")
    return found


def to_text(found: Sequence[FeedingRawLog]) -> str:
    """Return the value of the entry `RAW_LOGS_KEY`."""
    return json_text([each.shown() for each in found])


def from_text(text: str) -> tuple[FeedingRawLog, ...]:
    """Return what `to_text` wrote. Raises `InvalidInput` naming the key."""
    try:
        return raw_logs_of(json_value(RAW_LOGS_KEY, text))
    except InvalidInput as error:
        raise InvalidInput(f"table configuration {RAW_LOGS_KEY!r}: {error}", key=RAW_LOGS_KEY) from error


def _texts(name: str, given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise InvalidInput(f"{name} of a raw log is a list of places, found {quoted(given)}")
    return tuple(given)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
