"""From any text to the key that it is, or to none: the first folder says who parses it."""

from __future__ import annotations

from collections.abc import Callable

from storage_core.errors import InvalidInput
from storage_core.formats.keys.delta import parse_delta
from storage_core.formats.keys.iceberg import parse_iceberg
from storage_core.formats.keys.indices import parse_index
from storage_core.formats.keys.parsed import ParsedKey
from storage_core.formats.keys.regions import parse_region
from storage_core.formats.keys.splits import parse_partitioned_split, parse_split
from storage_core.formats.keys.transaction_log import parse_log
from storage_core.formats.keys.upkeep import (
    parse_gc,
    parse_lock,
    parse_probe,
    parse_quarantine,
    parse_source,
    parse_tags,
)

# A parser is given the key and its parts behind the first. It says None, or raises `InvalidInput`, for what is no key.
_PARSERS: dict[str, Callable[[str, list[str]], ParsedKey | None]] = {
    "_transaction_log": parse_log,
    "splits": parse_split,
    "_indices": parse_index,
    "_mem_wal": parse_region,
    "_gc": parse_gc,
    "_tags.json": parse_tags,
    "_source.json": parse_source,
    "_probe": parse_probe,
    "_locks": parse_lock,
    "quarantine": parse_quarantine,
    "_delta_log": parse_delta,
    "_iceberg": parse_iceberg,
}


def parse(key: str) -> ParsedKey | None:
    """Return the kind and parts of a key that one of the builders makes, and None for every other text."""
    parts = key.split("/")
    parser = _PARSERS.get(parts[0])
    try:
        if parser is None:
            return parse_partitioned_split(key)
        return parser(key, parts[1:])
    except InvalidInput:
        return None
