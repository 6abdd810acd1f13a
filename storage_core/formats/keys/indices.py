"""Keys below `_indices/`: the segments of each index, and where compactions moved the rows of them all."""

from __future__ import annotations

from storage_core.formats.keys.parsed import KeyKind, ParsedKey, exact
from storage_core.formats.keys.parts import index_name, uuid

_TRANSLATIONS = "_translations"


def segment_key(index: str, segment_id: str) -> str:
    """Return the key of one index segment."""
    return f"_indices/{index_name(index)}/{uuid(segment_id)}.seg"


def translation_key(translation_id: str) -> str:
    """Return the key of one translation; no index has a name like that of its folder."""
    return f"_indices/{_TRANSLATIONS}/{uuid(translation_id)}.map"


def parse_index(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it."""
    match parts:
        case [folder, name] if folder == _TRANSLATIONS:
            translation_id = name.removesuffix(".map")
            parsed = ParsedKey(kind=KeyKind.TRANSLATION, key=key, id=translation_id)
            return exact(key, translation_key(translation_id), parsed)
        case [index, name]:
            segment_id = name.removesuffix(".seg")
            parsed = ParsedKey(kind=KeyKind.SEGMENT, key=key, index=index, id=segment_id)
            return exact(key, segment_key(index, segment_id), parsed)
        case _:
            return None
