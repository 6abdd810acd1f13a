"""The kinds of stored objects. Each kind is declared once (decision 0041, docs/spec.md, section 1).

An entry of `KINDS` describes one kind: the form of its keys, and the kinds to which its objects refer. An entry also
states what protects an object from the collector, and which part of an object can contain values of rows. The code that
builds and parses keys uses the entries. The collector, the check, forgetting, clones and repair also use the entries.
`storage_core.maintain.table_objects` reads the objects.

To add a kind:

1. Add the entry of the kind to `KINDS` in this module. The parts of the key template are fields of `keys.ParsedKey`.
2. For a small JSON object, the codec is in the entry, and the record is in `documents`. Every other kind has a module
   of its own.
3. Add a function `<kind>_key` for the new kind to the module `keys`.
4. If the object contains values of rows, add a reader to `_READERS` in `storage_core/maintain/check.py`.
5. Add an object of the kind to `tests/support/every_kind.py`, and a row to section 1 of docs/spec.md. Run
   `tests/unit/test_kinds.py` and `tests/unit/test_keys.py`, which report anything that is missing.

Any text can be one segment of a key. The text is percent-encoded. The encoding is unique and reversible.

The name of a numbered object consists of the 64 bits of the number, with the least significant bit first. Consecutive
numbers differ in the first character. So a store that partitions by key prefix distributes the objects evenly. The
disadvantage is that a listing is not in the order of the numbers. No reader relies on that order
(docs/architecture/README.md, rule 2).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import cached_property, partial
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted
from storage_core.data.formats.json_document import JsonDocument
from storage_core.data.settings.index import INDEX_NAME

GENERATION_FILES: Final = ("_manifest.json", "bloom_filter.bin", "key_index.arrow", "records.arrow")
"""The files of a generation, except its index segments."""

PARTITION_FOLDER: Final = r"[A-Za-z0-9_.%~-]+=[A-Za-z0-9_.%~-]*"
MAX_NUMBER: Final = 2**64 - 1
"""The largest number whose binary form in a key has 64 digits."""

_LARGEST: Final = 2**63 - 1
_MAX_SEGMENT: Final = 200
_EMPTY_SEGMENT: Final = "%"
_SHORTENED: Final = re.compile(r"(?:[A-Za-z0-9_.%-])+~[0-9a-f]{32}", re.ASCII)
_BITS: Final = r"[01]{64}"
_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_WHAT_UUID: Final = "a lower-case UUID of 36 characters"
_FILE: Final = "|".join(map(re.escape, GENERATION_FILES))


# Encodings of the parts of keys.


def encode_segment(value: str) -> str:
    """Return `value` percent-encoded as one path segment. Letters, digits, `_`, `-` and inner dots are not encoded.

    Different values have different encodings. The empty string is encoded as a single `%`. A first dot is always
    encoded, so `.` and `..` never appear. Raises `InvalidInput` for text that is not valid Unicode (lone surrogates).
    """
    if value == "":
        return _EMPTY_SEGMENT
    try:
        encoded = quote(value, safe="").replace("~", "%7E")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{value!r} is not valid Unicode text and cannot name an object") from error
    return "%2E" + encoded[1:] if encoded.startswith(".") else encoded


def decode_segment(segment: str) -> str:
    """Return the value that `encode_segment` encoded as `segment`. Raises `InvalidInput` for any other text."""
    if segment == _EMPTY_SEGMENT:
        return ""
    try:
        value = unquote_to_bytes(segment).decode("utf-8")
    except UnicodeError as error:
        raise InvalidInput(f"{segment!r} is not a percent-encoded path segment", segment=segment) from error
    if encode_segment(value) != segment:
        raise InvalidInput(f"{segment!r} is not a percent-encoded path segment", segment=segment)
    return value


def short_segment(value: str) -> str:
    """Return the encoded value.

    If the encoded value is longer than 200 bytes, cut it and append a digest that makes it unique.
    """
    encoded = encode_segment(value)
    if len(encoded) <= _MAX_SEGMENT:
        return encoded
    # File systems limit a name to 255 bytes. The encoding always escapes "~", so the cut form is unambiguous.
    digest = hashlib.sha256(value.encode()).hexdigest()[:32]
    return f"{encoded[: _MAX_SEGMENT - 33]}~{digest}"


def require_encoded(segment: str) -> str:
    """Return `segment` if `short_segment` can produce it. Raises `InvalidInput` for any other text."""
    if len(segment) == _MAX_SEGMENT and _SHORTENED.fullmatch(segment):
        return segment
    decode_segment(segment)
    if len(segment) > _MAX_SEGMENT:
        raise InvalidInput(f"{segment!r} is longer than the {_MAX_SEGMENT} bytes that are written", segment=segment)
    return segment


def reversed_name(number: int) -> str:
    """Return the name of `number`, 1 to 2**64 - 1.

    Raises `InvalidInput` for zero, because no object has the number zero.
    """
    if not 1 <= number <= MAX_NUMBER:
        raise InvalidInput(f"{number} is not a number of an object. Give a number from 1 to 2**64 - 1", number=number)
    return format(number, "064b")[::-1]


def number_of(name: str) -> int:
    """Return the number for a name that `reversed_name` returned. Raises `InvalidInput` for any other text."""
    if not re.fullmatch(_BITS, name, re.ASCII):
        raise InvalidInput(f"expected 64 characters, each 0 or 1, found {name!r}", name=name)
    number = int(name[::-1], 2)
    if number == 0:
        raise InvalidInput("64 zeros are not a number of an object. The first number is 1", name=name)
    return number


@dataclass(frozen=True, slots=True)
class Form:
    """One part of a key: its pattern, and the functions that convert its text to its value and back.

    They raise `InvalidInput`.
    """

    pattern: str
    write: Callable[[Any], str]
    read: Callable[[str], Any] = str


def _text(pattern: str, what: str) -> Form:
    """Return a `Form` that accepts the texts that match a pattern."""
    wanted = re.compile(pattern, re.ASCII)

    def checked(text: str) -> str:
        if not wanted.fullmatch(text):
            raise InvalidInput(f"expected {what}, found {text!r}", found=text)
        return text

    return Form(pattern, checked)


def _numbers(what: str, least: int = 0, most: int = _LARGEST, *, digits: int = 0) -> Form:
    """Return a `Form` for numbers with `digits` digits. If `digits` is 0, the numbers have no leading zeros."""

    def bounded(number: int) -> int:
        if not least <= number <= most:
            shown = "2**63 - 1" if most == _LARGEST else most
            raise InvalidInput(f"{quoted(number)} is out of range: {what} are {least} to {shown}", found=number)
        return number

    pattern, spec = (f"[0-9]{{{digits}}}", f"0{digits}d") if digits else (r"0|[1-9][0-9]{0,18}", "d")
    return Form(pattern, lambda each: format(bounded(each), spec), lambda text: bounded(int(text)))


def _write_folder(of: tuple[int | None, bool]) -> str:
    window, windowed = of
    if not windowed and window is not None:
        raise InvalidInput(f"a table without windows has no window {window}", window=window)
    if window is None:
        return "null" if windowed else "all"
    return str(_window(window))


def _read_folder(text: str) -> tuple[int | None, bool]:
    return (None if text in ("all", "null") else _window(int(text))), text != "all"


def _window(window: int) -> int:
    if not -_LARGEST - 1 <= window <= _LARGEST:
        raise InvalidInput(f"a window start is a 64-bit number of seconds, found {window}", window=window)
    return window


FORMS: Final[Mapping[str, Form]] = {
    "version": _numbers("versions", digits=20),
    "delta": _numbers("Delta versions", most=10**20 - 1, digits=20),
    "iceberg": _numbers("snapshots", most=10**19 - 1),
    "metadata": _numbers("metadata files", least=1, most=10**19 - 1),
    "part": _numbers("parts", least=1, most=99_999, digits=5),
    "chunk": _numbers("chunks", least=1, digits=20),
    "moment": _numbers("moments in ms"),
    "bits": Form(_BITS, reversed_name, number_of),
    "hex16": _text(r"[0-9a-f]{16}", "16 lower-case hex digits"),
    "uuid": _text(_UUID, _WHAT_UUID),
    "checkpoint": _text(rf"[0-9a-f]{{12}}|{_UUID}", f"{_WHAT_UUID}, or 12 lower-case hex digits"),
    "id": _text(r"[a-z0-9][a-z0-9-]{0,99}", "a split id (a-z 0-9 -)"),
    "folder": Form(r"all|null|0|-?[1-9][0-9]{0,18}", _write_folder, _read_folder),
    "partition": Form(rf"(?:{PARTITION_FOLDER}/)*", lambda each: f"{each}/" if each else ""),
    "index": _text(INDEX_NAME.pattern, "an index name (1 to 63 of A-Z a-z 0-9 _ -, starting with a letter or digit)"),
    "generation": _text(r"[0-9a-f]{8}_gen_[1-9][0-9]{0,18}", "a generation directory (<8 hex>_gen_<number>)"),
    "file": _text(rf"{_FILE}|{INDEX_NAME.pattern}\.seg", f"one of {', '.join(GENERATION_FILES)} or <index>.seg"),
    "segment": Form(r"[^/]+", short_segment, require_encoded),
}
"""The written form of each part of an object's key. The key of an entry is the name after the colon in a template."""


# Kinds of objects.


class KeyKind(StrEnum):
    """The names of the kinds."""

    VERSION = "version"
    LAST_CHECKPOINT = "last_checkpoint"
    MANIFEST = "manifest"
    PROGRESS = "progress"
    STATE = "state"
    JSON_CHECKPOINT = "json_checkpoint"
    JSON_CHECKPOINT_PART = "json_checkpoint_part"
    SPLIT = "split"
    VECTOR = "vector"
    SEGMENT = "segment"
    TRANSLATION = "translation"
    REGION_REGISTRY = "region_registry"
    REGION_MANIFEST = "region_manifest"
    REGION_HINT = "region_hint"
    WAL_ENTRY = "wal_entry"
    GENERATION_FILE = "generation_file"
    GC_CANDIDATES = "gc_candidates"
    GC_BOUNDARY = "gc_boundary"
    TAGS = "tags"
    SOURCE = "source"
    PROBE = "probe"
    LOCK = "lock"
    QUARANTINE = "quarantine"
    DELTA_COMMIT = "delta_commit"
    DELTA_CHECKPOINT = "delta_checkpoint"
    DELTA_HINT = "delta_hint"
    ICEBERG_METADATA = "iceberg_metadata"
    ICEBERG_LIST = "iceberg_list"
    ICEBERG_MANIFEST = "iceberg_manifest"
    ICEBERG_HINT = "iceberg_hint"
    RAW_CHUNK = "raw_chunk"
    RAW_IDS = "raw_ids"
    RAW_COLLECTED = "raw_collected"


class Reason(StrEnum):
    """The reason why the collector may delete an object."""

    ORPHAN_SPLIT = "orphan_split"
    REMOVED_SPLIT = "removed_split"
    UNNAMED_VECTOR = "unnamed_vector"
    ORPHAN_SEGMENT = "orphan_segment"
    REMOVED_SEGMENT = "removed_segment"
    ORPHAN_TRANSLATION = "orphan_translation"
    REMOVED_TRANSLATION = "removed_translation"
    MERGED_GENERATION = "merged_generation"
    ORPHAN_GENERATION = "orphan_generation"
    WAL_ENTRY = "wal_entry"
    OLD_VERSION = "old_version"
    OLD_STATE = "old_state"
    OLD_MANIFEST = "old_manifest"
    OLD_REGION_MANIFEST = "old_region_manifest"
    LEFT_BY_PROBE = "left_by_probe"
    DISTRIBUTED_CHUNK = "distributed_chunk"
    OLD_RECORD_IDS = "old_record_ids"
    FORGOTTEN = "forgotten"
    OLD_PUBLISHED = "old_published"


class Keeper(StrEnum):
    """The reason why the collector keeps an object."""

    NOTHING = "nothing"
    ALWAYS = "always"
    REFERENCE = "reference"
    """A reference.

    An object is kept if a root object contains its key. An object is also kept if another kept object contains its key.
    """
    NUMBER = "number"
    """The number of the object. The collector keeps objects with numbers from the first retained number onwards."""
    REGION = "region"
    """The newest manifest of the object's region."""
    RAW_LOG = "raw_log"
    """The retention of the object's raw log protects the object.

    Each table that has not yet received the records of the object also protects the object.
    """


class Rows(StrEnum):
    """The part of an object that can contain values of rows."""

    NONE = "none"
    WHOLE = "whole"
    """The object contains rows, records or rejected lines."""
    VALUES = "values"
    """The object contains values of rows: bounds, row keys, index terms, or folders of partitions."""


@dataclass(frozen=True)
class ObjectKind:
    """One kind of stored object.

    Attributes:
        kind: The name of the kind.
        template: The form of the key. It consists of text and of parts such as `{name:form}`.
        refers_to: The kinds of the objects to which an object of this kind refers.
        keeper: What protects objects of this kind from the collector.
        unneeded: The reason to delete an unprotected object.
        removed: The reason to delete an object that a commit removed.
        rows: Where objects of this kind can contain values of rows.
        shared: Whether an object may be in the source of a shallow clone.
        derived: Whether an object can be made again from other objects.
        reused: Whether the name of a deleted object could be written again.
        tables: Whether tables store such objects.
        raw_logs: Whether raw logs store such objects.
        document: The codec of an object that is one JSON document. The module of the kind contains the fields of its
            body.
    """

    kind: KeyKind
    template: str
    _: KW_ONLY
    refers_to: frozenset[KeyKind] = frozenset()
    keeper: Keeper = Keeper.ALWAYS
    unneeded: Reason | None = None
    removed: Reason | None = None
    rows: Rows = Rows.NONE
    shared: bool = False
    derived: bool = False
    reused: bool = False
    tables: bool = True
    raw_logs: bool = False
    document: JsonDocument | None = None

    def key(self, **parts: object) -> str:
        """Return the key with these parts. Raises `InvalidInput` for a part that no key can have."""
        return "".join([text + (form.write(parts[name]) if form else "") for text, name, form in self._pieces])

    def parts(self, key: str) -> dict[str, Any] | None:
        """Return the parts of a key of this kind. Return None for any other text."""
        found = self._pattern.fullmatch(key) if key.endswith(self._ending) else None
        if found is None:
            return None
        try:
            return {
                name: form.read(text)
                for (_, name, form), text in zip(self._pieces, found.groups(), strict=False)
                if form
            }
        except InvalidInput:
            return None

    @cached_property
    def folder(self) -> str:
        """The first folder in the keys of this kind, after any folders of a partition."""
        return self.template.removeprefix("{partition:partition}").partition("/")[0]

    @cached_property
    def _pieces(self) -> tuple[tuple[str, str, Form | None], ...]:
        """The template, divided into pieces.

        Each piece is a text, with the name and the form of the part that follows the text.
        """
        found = re.split(r"\{(\w+):(\w+)\}", self.template)
        texts, names, forms = found[::3], [*found[1::3], ""], [*(FORMS[each] for each in found[2::3]), None]
        return tuple(zip(texts, names, forms, strict=True))

    @cached_property
    def _ending(self) -> str:
        return self._pieces[-1][0]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = (re.escape(text) + (f"({form.pattern})" if form else "") for text, _, form in self._pieces)
        return re.compile("".join(parts), re.ASCII)


def _kinds(*names: KeyKind) -> frozenset[KeyKind]:
    return frozenset(names)


_K, _R = KeyKind, Reason
_FILES: Final = _kinds(_K.SPLIT, _K.VECTOR, _K.SEGMENT, _K.TRANSLATION)
_LOG: Final = "_transaction_log/"
_REGION: Final = "_mem_wal/{region:uuid}/"
_METADATA: Final = "_iceberg/metadata/"

_by_reference = partial(ObjectKind, keeper=Keeper.REFERENCE)
_by_number = partial(ObjectKind, keeper=Keeper.NUMBER)
_by_region = partial(ObjectKind, keeper=Keeper.REGION)

_ALL: Final = (
    _by_number(
        _K.VERSION,
        _LOG + "{version:version}.json",
        refers_to=_FILES,
        unneeded=_R.OLD_VERSION,
        rows=Rows.VALUES,
        reused=True,
    ),
    ObjectKind(
        _K.LAST_CHECKPOINT, _LOG + "_last_checkpoint", refers_to=_kinds(_K.STATE, _K.JSON_CHECKPOINT), derived=True
    ),
    _by_reference(
        _K.MANIFEST,
        _LOG + "manifests/manifest-{id:hex16}.avro",
        refers_to=_kinds(_K.SPLIT, _K.VECTOR),
        unneeded=_R.OLD_MANIFEST,
        rows=Rows.VALUES,
        derived=True,
    ),
    _by_reference(_K.PROGRESS, _LOG + "progress/progress-{id:hex16}.avro", unneeded=_R.OLD_MANIFEST, derived=True),
    _by_reference(
        _K.STATE,
        _LOG + "state-v{version:version}/_manifest.avro",
        refers_to=_kinds(_K.MANIFEST, _K.PROGRESS, _K.SPLIT, _K.SEGMENT, _K.TRANSLATION),
        unneeded=_R.OLD_STATE,
        rows=Rows.VALUES,
        derived=True,
    ),
    _by_reference(
        _K.JSON_CHECKPOINT,
        _LOG + "{version:version}.checkpoint.json",
        refers_to=_FILES | {_K.JSON_CHECKPOINT_PART},
        unneeded=_R.OLD_STATE,
        rows=Rows.VALUES,
        derived=True,
    ),
    _by_reference(
        _K.JSON_CHECKPOINT_PART,
        _LOG + "{version:version}.checkpoint.{id:checkpoint}.{entry:part}.json",
        refers_to=_FILES,
        unneeded=_R.OLD_MANIFEST,
        rows=Rows.VALUES,
        derived=True,
    ),
    _by_reference(
        _K.SPLIT,
        "{partition:partition}splits/{folder:folder}/{id:id}.parquet",
        unneeded=_R.ORPHAN_SPLIT,
        removed=_R.REMOVED_SPLIT,
        rows=Rows.WHOLE,
        shared=True,
    ),
    # An action does not refer to the deletion vector that it replaces. A deletion vector without an action may be
    # uncommitted.
    _by_reference(_K.VECTOR, "splits/{folder:folder}/{id:uuid}.dv", unneeded=_R.UNNAMED_VECTOR, shared=True),
    _by_reference(
        _K.SEGMENT,
        "_indices/{index:index}/{id:uuid}.seg",
        unneeded=_R.ORPHAN_SEGMENT,
        removed=_R.REMOVED_SEGMENT,
        rows=Rows.VALUES,
        shared=True,
        derived=True,
    ),
    _by_reference(
        _K.TRANSLATION,
        "_indices/_translations/{id:uuid}.map",
        unneeded=_R.ORPHAN_TRANSLATION,
        removed=_R.REMOVED_TRANSLATION,
        shared=True,
        derived=True,
    ),
    ObjectKind(
        _K.REGION_REGISTRY,
        "_mem_wal/_regions.json",
        rows=Rows.VALUES,
        document=JsonDocument(called="the regions of a table", has_checksum=True),
    ),
    _by_region(
        _K.REGION_MANIFEST,
        _REGION + "manifest/{version:bits}.binpb",
        refers_to=_kinds(_K.GENERATION_FILE),
        unneeded=_R.OLD_REGION_MANIFEST,
        rows=Rows.VALUES,
        reused=True,
    ),
    ObjectKind(
        _K.REGION_HINT, _REGION + "manifest/version_hint.json", refers_to=_kinds(_K.REGION_MANIFEST), derived=True
    ),
    _by_region(_K.WAL_ENTRY, _REGION + "wal/{entry:bits}.arrow", unneeded=_R.WAL_ENTRY, rows=Rows.WHOLE, reused=True),
    _by_region(
        _K.GENERATION_FILE,
        _REGION + "{directory:generation}/{name:file}",
        refers_to=_kinds(_K.WAL_ENTRY, _K.GENERATION_FILE),
        unneeded=_R.ORPHAN_GENERATION,
        removed=_R.MERGED_GENERATION,
        rows=Rows.WHOLE,
    ),
    # The plan contains only names of candidates, and does not protect these objects.
    ObjectKind(
        _K.GC_CANDIDATES,
        "_gc/candidates.json",
        rows=Rows.VALUES,
        raw_logs=True,
        document=JsonDocument(called="a plan of the collector"),
    ),
    ObjectKind(_K.GC_BOUNDARY, "_gc/boundary.json", document=JsonDocument(called="a boundary", unnumbered=True)),
    ObjectKind(_K.TAGS, "_tags.json", document=JsonDocument(called="the tags of a table")),
    ObjectKind(_K.SOURCE, "_source.json", document=JsonDocument(called="the place of the source of a clone")),
    ObjectKind(_K.PROBE, "_probe/{id:uuid}.json", keeper=Keeper.NOTHING, unneeded=_R.LEFT_BY_PROBE, raw_logs=True),
    ObjectKind(
        _K.LOCK,
        "_locks/{source:segment}.json",
        document=JsonDocument(
            called="a lease",
            advice="the last token of the lease is unknown, so no job takes the lease over. To continue, break the "
            "lease: see `Held` in "
            "docs/operations.md",
        ),
    ),
    ObjectKind(_K.QUARANTINE, "quarantine/{source:segment}/{id:uuid}.json", rows=Rows.WHOLE, raw_logs=True),
    _by_number(
        _K.DELTA_COMMIT,
        "_delta_log/{version:delta}.json",
        refers_to=_kinds(_K.SPLIT),
        unneeded=_R.OLD_PUBLISHED,
        rows=Rows.VALUES,
        reused=True,
    ),
    _by_number(
        _K.DELTA_CHECKPOINT,
        "_delta_log/{version:delta}.checkpoint.parquet",
        refers_to=_kinds(_K.SPLIT),
        unneeded=_R.OLD_PUBLISHED,
        rows=Rows.VALUES,
        derived=True,
    ),
    ObjectKind(_K.DELTA_HINT, "_delta_log/_last_checkpoint", refers_to=_kinds(_K.DELTA_CHECKPOINT), derived=True),
    _by_number(
        _K.ICEBERG_METADATA,
        _METADATA + "v{version:metadata}.metadata.json",
        refers_to=_kinds(_K.ICEBERG_LIST),
        unneeded=_R.OLD_PUBLISHED,
    ),
    _by_reference(
        _K.ICEBERG_LIST,
        _METADATA + "snap-{version:iceberg}-{id:uuid}.avro",
        refers_to=_kinds(_K.ICEBERG_MANIFEST),
        unneeded=_R.OLD_PUBLISHED,
    ),
    _by_reference(
        _K.ICEBERG_MANIFEST,
        _METADATA + "{id:uuid}-m0.avro",
        refers_to=_kinds(_K.SPLIT),
        unneeded=_R.OLD_PUBLISHED,
        rows=Rows.VALUES,
    ),
    ObjectKind(_K.ICEBERG_HINT, _METADATA + "version-hint.text", refers_to=_kinds(_K.ICEBERG_METADATA), derived=True),
    ObjectKind(
        _K.RAW_CHUNK,
        "live/{segment_ms:moment}.{writer:uuid}/{number:chunk}.avro",
        keeper=Keeper.RAW_LOG,
        unneeded=_R.DISTRIBUTED_CHUNK,
        rows=Rows.WHOLE,
        tables=False,
        raw_logs=True,
    ),
    ObjectKind(
        _K.RAW_IDS,
        "ids/{first_ms:moment}-{last_ms:moment}.{checksum:hex16}.arrow",
        keeper=Keeper.RAW_LOG,
        unneeded=_R.OLD_RECORD_IDS,
        tables=False,
        raw_logs=True,
    ),
    ObjectKind(
        _K.RAW_COLLECTED,
        "live/collected.json",
        tables=False,
        raw_logs=True,
        document=JsonDocument(called="the record of collected chunks of a raw log"),
    ),
)

KINDS: Final[Mapping[KeyKind, ObjectKind]] = {each.kind: each for each in _ALL}


def document_of(kind: KeyKind) -> JsonDocument:
    """Return the codec of a kind whose objects are JSON documents. Raises `LookupError` if the kind has no codec."""
    document = KINDS[kind].document
    if document is None:
        raise LookupError(f"objects of the kind {kind} are not one JSON document")
    return document


def with_rows(*rows: Rows) -> frozenset[KeyKind]:
    """Return the kinds of table objects that have one of these `Rows` values."""
    return frozenset(each.kind for each in _ALL if each.tables and each.rows in rows)


OF_TABLES: Final = frozenset(each.kind for each in _ALL if each.tables)
"""The kinds of objects in the folder of a table."""

SHARED: Final = frozenset(each.kind for each in _ALL if each.shared)
"""The kinds of objects that may be in the source of a shallow clone. Each object has a fresh id."""

CHECKPOINTS: Final = _kinds(_K.STATE, _K.JSON_CHECKPOINT)
"""The roots of checkpoints."""

PARTS_OF_CHECKPOINTS: Final = frozenset(part for root in CHECKPOINTS for part in KINDS[root].refers_to) - SHARED
"""The objects of a checkpoint, except its root."""

REUSED: Final = frozenset(each.kind for each in _ALL if each.reused)
"""The kinds of objects whose names can occur again.

After a deletion, a stalled writer could write the same name again.
"""
