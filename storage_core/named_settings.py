"""The settings of a table that may change, by the names that `create`, `alter`, declarations and `describe` share.

A name is the way to a field of `tables/NAME.yaml`: `gc.retention`, `compaction.factor`, `retention`. What `describe`
shows can be given back. Values are those of declarations, as text or as the type that the text stands for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final

from storage_core.definition import index_definitions
from storage_core.errors import InvalidInput
from storage_core.objectstore.resolve import check_location
from storage_core.rows.windows import parse_duration, parse_milliseconds
from storage_core.settings.compaction import CompactionSettings
from storage_core.settings.index import IndexDefinition
from storage_core.settings.late_data import LateData
from storage_core.settings.publish import Publish
from storage_core.settings.raw_logs import FeedingRawLog, raw_logs_of
from storage_core.settings.sizes import parse_size, size_text
from storage_core.settings.table import CHANGEABLE, TableConfig

INSTANT_FORMAT: Final = "%Y-%m-%dT%H:%M"

_UNITS: Final[Mapping[str, int]] = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_RECORDS: Final[Mapping[str, CompactionSettings | LateData]] = {
    "compaction": CompactionSettings(),
    "late_data": LateData(),
}


@dataclass(frozen=True, slots=True)
class _Form:
    """How a value is read as it is given, text or not, and shown as plain data that reads back."""

    read: Callable[[Any], object]
    show: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class _Named:
    """The field of `TableConfig` that a name stands for, or the part of one, and the form of its values."""

    form: _Form
    field: str
    part: str | None = None

    def of(self, config: TableConfig) -> object:
        record = getattr(config, self.field)
        return record if self.part is None or record is None else getattr(record, self.part)


def _duration_text(ms: int) -> str:
    unit = next((name for name, size in _UNITS.items() if ms and ms % size == 0), None)
    return "0s" if not ms else f"{ms}ms" if unit is None else f"{ms // _UNITS[unit]}{unit}"


def _whole(given: object) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    text = given.strip() if isinstance(given, str) else ""
    if not text.removeprefix("-").isdecimal():
        raise InvalidInput(f"{given!r} is not a whole number")
    return int(text)


def _flag(given: object) -> bool:
    if isinstance(given, bool):
        return given
    if given not in ("true", "false"):
        raise InvalidInput(f"{given!r} is neither true nor false")
    return given == "true"


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise InvalidInput(f"{given!r} is not text")
    return given


def _names(given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        return tuple(each.strip() for each in given.split(",") if each.strip())
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise InvalidInput(f"{given!r} is no list of names")
    return tuple(given)


def parse_instant(text: str) -> datetime:
    """Return the time in UTC that a text such as `2015-05-17T00:00` says. Raises `InvalidInput`."""
    try:
        return datetime.strptime(text, INSTANT_FORMAT).replace(tzinfo=UTC)
    except ValueError as error:
        raise InvalidInput(f"{text!r} is not a time like 2015-05-17T00:00 (UTC, no zone, no seconds)") from error


def _instant(given: object) -> int:
    is_number = isinstance(given, int) and not isinstance(given, bool)
    return given if is_number else int(parse_instant(_text(given)).timestamp())  # type: ignore[return-value]


def _instant_text(seconds: int) -> object:
    """Text, and seconds where these are no whole minute."""
    return seconds if seconds % 60 else datetime.fromtimestamp(seconds, UTC).strftime(INSTANT_FORMAT)


def _indexes(given: object) -> tuple[IndexDefinition, ...]:
    if not isinstance(given, str):
        return index_definitions(given)  # type: ignore[arg-type]  # which it checks
    try:
        return index_definitions(json.loads(given))
    except ValueError as error:
        raise InvalidInput(f"indexes are a JSON list of name, kind, columns and maybe options: {error}") from error


def _shown_index(index: IndexDefinition) -> dict[str, object]:
    return {"name": index.name, "kind": index.kind, "columns": list(index.columns), "options": dict(index.options)}


def read_raw_logs(given: object) -> tuple[FeedingRawLog, ...]:
    """Return the raw logs in a list of mappings, or in JSON text of one; durations are text such as `24h`.

    Raises `InvalidInput`, also for a place with credentials in it.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise InvalidInput(f"raw_logs are a JSON list of name, table and stores: {error}") from error
    if not isinstance(given, list | tuple):
        return raw_logs_of(given)
    found = raw_logs_of([_in_ms(each) if isinstance(each, Mapping) else each for each in given])
    return tuple(each.moved(check_location) for each in found)


def _in_ms(raw_log: Mapping[str, Any]) -> dict[str, Any]:
    return {
        _RAW_MS.get(name, name): parse_milliseconds(value) if name in _RAW_MS else value
        for name, value in raw_log.items()
    }


def _shown_raw_log(raw_log: FeedingRawLog) -> dict[str, object]:
    found = raw_log.shown()
    return found | {name: _duration_text(found.pop(field)) for name, field in _RAW_MS.items() if field in found}


_RAW_MS: Final[Mapping[str, str]] = {"unique_for": "unique_for_ms", "closed_after": "closed_after_ms"}
_TEXT = _Form(_text, str)
_COUNT = _Form(_whole, int)
_SIZE = _Form(parse_size, size_text)
_MS = _Form(parse_milliseconds, _duration_text)
_SECONDS = _Form(parse_duration, lambda seconds: _duration_text(1000 * seconds))
_COLUMNS = _Form(_names, list)
_RAW_LOGS = _Form(read_raw_logs, lambda found: [_shown_raw_log(each) for each in found])
_PUBLISH = _Form(Publish.of, Publish.shown)
_INDEXES = _Form(_indexes, lambda found: [_shown_index(each) for each in found])

NAMED: Final[Mapping[str, _Named]] = {
    "sort_schema": _Named(_TEXT, "sort_schema"),
    "window": _Named(_SECONDS, "window_seconds"),
    "coarse_window": _Named(_Form(_flag, bool), "coarse_window"),
    "retention": _Named(_MS, "retention_ms"),
    "idle_after": _Named(_MS, "idle_after_ms"),
    "bloom_filters": _Named(_COLUMNS, "bloom_filters"),
    "indexes": _Named(_INDEXES, "indexes"),
    "maintained_indexes": _Named(_COLUMNS, "maintained_indexes"),
    "regions_by_hand": _Named(_Form(_flag, bool), "regions_by_hand"),
    "raw_logs": _Named(_RAW_LOGS, "raw_logs"),
    "publish": _Named(_PUBLISH, "publish"),
    "splits.target_size": _Named(_SIZE, "target_split_bytes"),
    "splits.compression": _Named(_TEXT, "split_compression"),
    "splits.compression_level": _Named(_COUNT, "split_compression_level"),
    "splits.metadata": _Named(_TEXT, "split_metadata"),
    "splits.string_cut": _Named(_COUNT, "string_cut"),
    "checkpoint.interval": _Named(_COUNT, "checkpoint_interval"),
    "checkpoint.format": _Named(_TEXT, "checkpoint_format"),
    "checkpoint.compression": _Named(_TEXT, "checkpoint_compression"),
    "checkpoint.manifest_entries": _Named(_COUNT, "manifest_entries"),
    "gc.horizon": _Named(_MS, "gc_horizon_ms"),
    "gc.retention": _Named(_MS, "version_retention_ms"),
    "gc.states": _Named(_COUNT, "retained_states"),
    "late_data.policy": _Named(_TEXT, "late_data", "policy"),
    "late_data.acceptance_window": _Named(_MS, "late_data", "acceptance_ms"),
    "compaction.factor": _Named(_COUNT, "compaction", "factor"),
    "compaction.most_inputs": _Named(_COUNT, "compaction", "most_inputs"),
    "compaction.generations": _Named(_COUNT, "compaction", "generations"),
    "compaction.most_files": _Named(_COUNT, "compaction", "most_files"),
    "compaction.cold_after": _Named(_MS, "compaction", "cold_after_ms"),
    "compaction.mature_after": _Named(_MS, "compaction", "mature_after_ms"),
    "compaction.run_rows": _Named(_COUNT, "compaction", "run_rows"),
    "compaction.coarsen_after": _Named(_MS, "compaction", "coarsen_after_ms"),
    "compaction.coarsen_to": _Named(_SECONDS, "compaction", "coarsen_to"),
    "compaction.start": _Named(_Form(_instant, _instant_text), "compaction", "start"),
}
"""Every setting that may change."""


def fields_below(name: str) -> dict[str, str]:
    """Return the settings below a name, each by the rest of its own name, as fields of `TableConfig`."""
    return {each.removeprefix(f"{name}."): named.field for each, named in NAMED.items() if each.startswith(f"{name}.")}


_OTHERWISE: Final[Mapping[str, str]] = {
    "regions": "regions change by `Table.set_regions`",
    "landing": "the landing place is declared in tables/NAME.yaml",
    "columns": "columns change by `Table.add_column` and its like, or by `tidemark alter URI add-column`",
    "former_windows": "it follows from changes of window",
}


def shown(config: TableConfig) -> dict[str, object]:
    """Return the value of every setting by its name, as `changed` takes it back; None where there is none."""
    found = {name: (named, named.of(config)) for name, named in NAMED.items()}
    return {name: None if value is None else named.form.show(value) for name, (named, value) in found.items()}


def changed(config: TableConfig, given: Mapping[str, object]) -> TableConfig:
    """Return the settings with those that are given, by name or as declarations nest them; None is back to the default.

    Raises `InvalidInput` naming a setting that there is not or that cannot change, and what is wrong with a value.
    """
    values = {name: _read(name, value) for name, value in _flat(given)}
    wanted: dict[str, object] = {}
    for name, value in values.items():
        named = NAMED[name]
        if named.part is None:
            wanted[named.field] = value
    try:
        for field, usual in _RECORDS.items():
            parts = {NAMED[name].part: value for name, value in values.items() if NAMED[name].field == field}
            if parts:
                wanted[field] = _record(getattr(config, field), usual, parts)
        return replace(config, **wanted)  # type: ignore[arg-type]  # read by the form of each
    except InvalidInput as error:
        raise InvalidInput(f"{', '.join(values)}: {error}", settings=sorted(values)) from error


def _record(record: Any, usual: Any, parts: Mapping[Any, object]) -> object:
    """The record with these parts; none where all of it that is optional went back to the default."""
    if isinstance(usual, LateData) and len(parts) == len(fields(usual)) and set(parts.values()) == {None}:
        return None
    back = {name: getattr(usual, name) if value is None else value for name, value in parts.items()}
    return replace(usual if record is None else record, **back)


def _flat(given: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in given.items():
        path = f"{above}{name}"
        inner = [each for each in NAMED if each.startswith(f"{path}.")]
        if inner and value is None:
            yield from ((each, None) for each in inner)
        elif inner and isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        elif path in NAMED:
            yield path, value
        else:
            raise InvalidInput(_refusal(path, inner), setting=path)


def _refusal(path: str, inner: list[str]) -> str:
    if inner:
        return f"{path} is several settings: {', '.join(inner)}; set these, or give a mapping"
    if path in _OTHERWISE:
        return f"{path} is not changed so: {_OTHERWISE[path]}"
    if path in {each.name for each in fields(TableConfig)} - CHANGEABLE:
        return f"{path} stays what the table was created with; make a new table for another"
    return f"there is no setting {path!r}; there are {', '.join(NAMED)}"


def _read(name: str, value: object) -> object:
    named = NAMED[name]
    if value is None:
        return None if named.part is not None else getattr(_DEFAULT, named.field)
    try:
        return named.form.read(value)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}", setting=name) from error


_DEFAULT: Final = TableConfig()
