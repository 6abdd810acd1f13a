"""Keys below `_mem_wal/`: the registry, and of each region its manifests, WAL entries and generations."""

from __future__ import annotations

import re

from storage_core.errors import InvalidInput
from storage_core.formats.bit_reversal import number_of, reversed_name
from storage_core.formats.keys.parsed import KeyKind, ParsedKey, exact
from storage_core.formats.keys.parts import matching, uuid
from storage_core.settings.index import INDEX_NAME

REGIONS_PREFIX = "_mem_wal/"
GENERATION_FILES = ("_manifest.json", "bloom_filter.bin", "key_index.arrow", "records.arrow")

_SEGMENT_SUFFIX = ".seg"
_GENERATION = re.compile(r"[0-9a-f]{8}_gen_([1-9][0-9]{0,18})", re.ASCII)


def region_registry_key() -> str:
    """Return the key of the list of the table's regions."""
    return "_mem_wal/_regions.json"


def region_manifest_key(region: str, version: int) -> str:
    """Return the key of one numbered manifest of a region (versions from 1)."""
    return f"_mem_wal/{uuid(region)}/manifest/{reversed_name(version)}.binpb"


def region_hint_key(region: str) -> str:
    """Return the key of the region's version hint."""
    return f"_mem_wal/{uuid(region)}/manifest/version_hint.json"


def wal_entry_key(region: str, entry: int) -> str:
    """Return the key of one WAL entry (ids from 1)."""
    return f"_mem_wal/{uuid(region)}/wal/{reversed_name(entry)}.arrow"


def generation_file_key(region: str, directory: str, name: str) -> str:
    """Return the key of one file of a flushed generation; `directory` is `<8 hex>_gen_<number>`.

    `name` is one of `GENERATION_FILES`, or `<index>.seg`.
    """
    matching(_GENERATION, directory, "a generation directory (<8 hex>_gen_<number>)")
    if name not in GENERATION_FILES and not _is_segment_name(name):
        raise InvalidInput(
            f"expected one of {', '.join(GENERATION_FILES)} or <index>{_SEGMENT_SUFFIX}, found {name!r}", name=name
        )
    return f"_mem_wal/{uuid(region)}/{directory}/{name}"


def generation_of(directory: str) -> int:
    """Return the generation number of a directory `<8 hex>_gen_<number>`. Raises `InvalidInput`."""
    found = _GENERATION.fullmatch(directory)
    if found is None:
        raise InvalidInput(f"expected <8 hex>_gen_<number>, found {directory!r}", directory=directory)
    return int(found[1])


def parse_region(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it."""
    match parts:
        case ["_regions.json"]:
            return ParsedKey(kind=KeyKind.REGION_REGISTRY, key=key)
        case [region, "manifest", "version_hint.json"]:
            return exact(key, region_hint_key(region), ParsedKey(kind=KeyKind.REGION_HINT, key=key, region=region))
        case [region, "manifest", name]:
            version = number_of(name.removesuffix(".binpb"))
            parsed = ParsedKey(kind=KeyKind.REGION_MANIFEST, key=key, region=region, version=version)
            return exact(key, region_manifest_key(region, version), parsed)
        case [region, "wal", name]:
            entry = number_of(name.removesuffix(".arrow"))
            parsed = ParsedKey(kind=KeyKind.WAL_ENTRY, key=key, region=region, entry=entry)
            return exact(key, wal_entry_key(region, entry), parsed)
        case [region, directory, name]:
            expected = generation_file_key(region, directory, name)
            generation = generation_of(directory)
            parsed = ParsedKey(
                kind=KeyKind.GENERATION_FILE,
                key=key,
                region=region,
                directory=directory,
                generation=generation,
                name=name,
            )
            return exact(key, expected, parsed)
        case _:
            return None


def _is_segment_name(name: str) -> bool:
    stem = name.removesuffix(_SEGMENT_SUFFIX)
    return stem != name and INDEX_NAME.fullmatch(stem) is not None
