"""The files of full-text segments, and the tokenizers of full-text columns.

Tantivy does not check the files that it opens. If a file contains a wrong count, tantivy uses the count as an address
and panics. Therefore `check` compares the files with the files that `fulltext.build` writes. The comparison includes
the list of segments, the schema, the names, the sizes, and tantivy's checksum of each file.

Each segment contains the names of its tokenizers:

| Name | Words |
|---|---|
| `raw`, `whitespace` | the words of tantivy's own tokenizers |
| `default` | each sequence of letters and digits, with their combining characters |
| `<language>_stem` | the words of `default`, reduced to their stems by Snowball |
| `cjk` | the words of `default`, but each Chinese, Japanese or Korean character is a word |
| `ngram_<least>_<most>` | all character sequences of one length: the length from `least` to `most` nearest to 3 |

A query of several CJK characters is a phrase. A query for a text in an n-gram index is also a phrase of n-grams, so the
query finds parts of words.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from storage_core.base.errors import Corrupt, InvalidInput
from storage_core.base.process import scratch_folder
from storage_core.base.text import shortened
from storage_core.data.settings.index import IndexDefinition
from storage_core.index.damage import damaged

if TYPE_CHECKING:
    import tantivy


DEFAULT: Final = "default"
RAW: Final = "raw"
WHITESPACE: Final = "whitespace"
CJK: Final = "cjk"
LANGUAGES: Final[Mapping[str, str]] = {
    "ar": "arabic",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "hu": "hungarian",
    "it": "italian",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
}
"""The values of `<language>`, with the name of the Snowball stemmer for each value."""

MOST_GRAM: Final = 10

MOST_BYTES: Final = 65_530
"""The maximum size of a word in bytes. Tantivy does not index a longer word (decision 0023)."""

_OPTION = "tokenizer"
_UNCHANGED: Final = (RAW, WHITESPACE)
"""The tokenizers of tantivy. The words that these tokenizers produce have never changed."""
_REVISION = 3
_SIGMA, _FINAL_SIGMA = "\N{GREEK SMALL LETTER SIGMA}", "\N{GREEK SMALL LETTER FINAL SIGMA}"
_NGRAM = re.compile(r"ngram_([1-9][0-9]?)_([1-9][0-9]?)", re.ASCII)
_USUAL_GRAM = 3  # the usual n-gram length. N-grams of length 1 or 2 are in most rows. Longer n-grams are too numerous.

# In tantivy's syntax of regular expressions. A combining character belongs to the letter before it.
_LETTER = r"\p{Alphabetic}\p{N}"
_LETTER_OR_SIGN = rf"{_LETTER}\p{{M}}\p{{Join_Control}}"
_IDEOGRAPH = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Bopomofo}"
    r"\x{3006}\x{3031}-\x{3035}\x{30FC}\x{FF70}\x{FF9E}\x{FF9F}"
)
_WORD = rf"[{_LETTER}][{_LETTER_OR_SIGN}]*"
_CJK_WORD = rf"[{_IDEOGRAPH}]\p{{M}}*|[[{_LETTER}]--[{_IDEOGRAPH}]][[{_LETTER_OR_SIGN}]--[{_IDEOGRAPH}]]*"


def known() -> str:
    """Return the names of the tokenizers as text for an error message."""
    return f"{DEFAULT}, {RAW}, {WHITESPACE}, {CJK}, {', '.join(f'{each}_stem' for each in LANGUAGES)} or ngram_2_3"


def tokenizer_of(definition: IndexDefinition, column: str) -> str:
    """Return the tokenizer of a column: the option `tokenizer.<column>` if set, otherwise the option `tokenizer`."""
    options = definition.options
    return options.get(f"{_OPTION}.{column}", options.get(_OPTION, DEFAULT))


def validate_tokenizers(definition: IndexDefinition) -> None:
    """Raise `InvalidInput` unless the options set a known tokenizer for each column."""
    options = {_OPTION, *(f"{_OPTION}.{column}" for column in definition.columns)}
    if unknown := sorted(definition.options.keys() - options):
        takes = f"A full-text index takes `{_OPTION}` for all columns, and `{_OPTION}.<column>` for one column"
        raise InvalidInput(f"index {definition.name!r}: unknown option {unknown[0]!r}. {takes}")
    for name in definition.options.values():
        if not _is_known(name):
            raise InvalidInput(f"index {definition.name!r}: tokenizer is {name!r}. Give one of {known()}")


def revision_of(definition: IndexDefinition) -> int | None:
    """Return the revision of the tokenizers of an index, or None for the revision of the first release.

    Segments of another revision contain other words, so no search uses these segments (decision 0023).
    """
    names = {tokenizer_of(definition, column) for column in definition.columns}
    return None if names <= {*_UNCHANGED} else _REVISION


def register(index: tantivy.Index, definition: IndexDefinition, *, marking: bool = False) -> None:
    """Register the tokenizers of an open index.

    The tokenizers expect texts that `prepared` returned. With `marking`, the tokenizers expect unchanged texts.
    """
    for name in {tokenizer_of(definition, column) for column in definition.columns} - {*_UNCHANGED}:
        index.register_tokenizer(name, _marker(name) if marking else _analyzer(name))


def folded(definition: IndexDefinition, column: str, text: str) -> str:
    """Return the text with `ς` replaced by `σ`, if the tokenizer of the column converts to lower case.

    The tokenizer converts each letter separately, so it always converts a capital sigma to `σ`. The letters `ς` and `σ`
    have two bytes each, so the positions of words do not change.
    """
    return text if tokenizer_of(definition, column) in _UNCHANGED else text.replace(_FINAL_SIGMA, _SIGMA)


def folded_rows(definition: IndexDefinition, rows: pa.Table) -> pa.Table:
    """Return the rows with `folded` applied to each text."""
    import pyarrow.compute as pc  # imported here because opening a table does not need it

    for column in definition.columns:
        if tokenizer_of(definition, column) not in _UNCHANGED:
            place = rows.schema.get_field_index(column)
            texts = pc.replace_substring(rows.column(place).cast(pa.string()), _FINAL_SIGMA, _SIGMA)
            rows = rows.set_column(place, column, texts)
    return rows


def prepared(text: str, length: int | None) -> str:
    """Return the text to index for a `folded` text of a column. `length` is the result of `gram_of` for the column.

    For a column with n-grams, the result is the concatenation of all n-grams of the text.
    """
    if length is None or len(text) <= length:
        return text
    return "".join([text[start : start + length] for start in range(len(text) - length + 1)])


def words(definition: IndexDefinition, column: str, text: str) -> list[str]:
    """Return the words that the index contains for a text of the column, in order."""
    prepared_text = prepared(folded(definition, column, text), gram_of(definition, column))
    return _analyzer(tokenizer_of(definition, column)).analyze(prepared_text)


def unstemmed(definition: IndexDefinition, column: str, text: str) -> list[str]:
    """Return the words of a text, without reducing them to stems."""
    name = DEFAULT if has_stems(definition, column) else tokenizer_of(definition, column)
    return _analyzer(name).analyze(prepared(folded(definition, column, text), gram_of(definition, column)))


def has_stems(definition: IndexDefinition, column: str) -> bool:
    """Return True if the index contains the stems of the column's words instead of the words."""
    return tokenizer_of(definition, column).endswith("_stem")


def gram_of(definition: IndexDefinition, column: str) -> int | None:
    """Return the number of characters of each n-gram of the column. None if the column has no n-grams."""
    return _gram(tokenizer_of(definition, column))


def expansion(definition: IndexDefinition) -> int:
    """Return the maximum factor by which a text grows during indexing."""
    return max(gram_of(definition, column) or 1 for column in definition.columns)


def _is_known(name: str) -> bool:
    if name in (DEFAULT, RAW, WHITESPACE, CJK):
        return True
    if grams := _grams(name):
        least, most = grams
        return least <= most <= MOST_GRAM
    return name.endswith("_stem") and name.removesuffix("_stem") in LANGUAGES


def _grams(name: str) -> Sequence[int]:
    found = _NGRAM.fullmatch(name)
    return [int(each) for each in found.groups()] if found else []


def _gram(name: str) -> int | None:
    found = _grams(name)
    return min(max(_USUAL_GRAM, found[0]), found[1]) if found else None


@functools.lru_cache(maxsize=64)  # compiling a regular expression over all of Unicode takes 20 ms
def _analyzer(name: str) -> tantivy.TextAnalyzer:
    """Return the tokenizer of an index, for documents and for queries."""
    import tantivy

    if name in _UNCHANGED:
        own = tantivy.Tokenizer.raw() if name == RAW else tantivy.Tokenizer.whitespace()
        return tantivy.TextAnalyzerBuilder(own).build()
    length = _gram(name)
    of_words = _CJK_WORD if name == CJK else _WORD
    words = tantivy.Tokenizer.regex(of_words if length is None else f"(?s).{{1,{length}}}")
    built = tantivy.TextAnalyzerBuilder(words).filter(tantivy.Filter.lowercase())
    language = LANGUAGES.get(name.removesuffix("_stem"))
    return (built if language is None else built.filter(tantivy.Filter.stemmer(language))).build()


def _marker(name: str) -> tantivy.TextAnalyzer:
    """Return a tokenizer that finds the index's words and their positions in texts that are not `prepared`.

    For n-grams, the tokenizer also returns shorter sequences of characters.
    """
    import tantivy

    if (length := _gram(name)) is None:
        return _analyzer(name)
    tokenizer = tantivy.Tokenizer.ngram(min_gram=1, max_gram=length)
    return tantivy.TextAnalyzerBuilder(tokenizer).filter(tantivy.Filter.lowercase()).build()


META = "meta.json"
ROW_FIELD = "_row"
_KINDS = ("fast", "fieldnorm", "idx", "pos", "store", "term")

_MAX_META_BYTES = 2**20
_SEGMENT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FOOTER_END = struct.Struct("<II")
_FOOTER_MAGIC = 1337
_FILE_FORMAT = 7


def check(
    files: Mapping[str, bytes | memoryview], definition: IndexDefinition, *, rows: int | None, where: str
) -> None:
    """Raise `Corrupt` with `where` if these cannot be the files of a segment with `rows` rows.

    If `rows` is None, any number is valid.
    """
    if META not in files:
        raise corrupt(where, f"the segment has no {META}")
    listed = segments_of(bytes(files[META][: _MAX_META_BYTES + 1]), definition, where)
    names = {name for each in listed for name in names_of(each)}
    if names != files.keys() - {META}:
        raise corrupt(where, f"the list in {META} differs from its files: {sorted(names ^ (files.keys() - {META}))}")
    for name in sorted(names):
        _check_file(memoryview(files[name]), name, where)
    for each, count in listed.items():
        # The file has one byte per document and field, so a wrong count does not match its size.
        if len(files[f"{each.replace('-', '')}.fieldnorm"]) < count * len(definition.columns):
            raise corrupt(where, f"segment {each} is too small for its {count} documents")
    found = sum(listed.values())
    if rows is not None and found != rows:
        raise corrupt(where, f"the segment has {found} documents, expected {rows}")


def names_of(segment: str) -> list[str]:
    """Return the names of the files of one tantivy segment."""
    return [f"{segment.replace('-', '')}.{kind}" for kind in _KINDS]


def read_meta(directory: Path, definition: IndexDefinition) -> dict[str, int]:
    """Return the number of documents of each tantivy segment by id, from unpacked files. The segments are in order.

    Raises `Corrupt`.
    """
    with (directory / META).open("rb") as file:
        return segments_of(file.read(_MAX_META_BYTES + 1), definition, directory.name)


def segments_of(meta: bytes, definition: IndexDefinition, where: str) -> dict[str, int]:
    """Return the number of documents of each tantivy segment in `meta.json`, by id, in order. Raises `Corrupt`."""
    if len(meta) > _MAX_META_BYTES:
        raise corrupt(where, f"{META} is larger than {_MAX_META_BYTES} bytes")
    try:
        value = json.loads(meta)
    except (ValueError, RecursionError) as error:
        raise corrupt(where, f"{META} is not JSON: {error}") from error
    match value:
        case {"segments": list(entries), "schema": list(schema), "index_settings": dict()}:
            pass
        case _:
            raise corrupt(where, f"{META} has no list of segments, schema or settings")
    if schema != schema_of(definition):
        raise corrupt(where, f"{META} has another schema than the index {definition.name!r}")
    found: dict[str, int] = {}
    for entry in entries:
        segment, count = _segment(entry, where)
        if segment in found:
            raise corrupt(where, f"{META} lists segment {segment} twice")
        found[segment] = count
    return found


def meta_of(segments: Mapping[str, int], definition: IndexDefinition) -> str:
    """Return the `meta.json` of an index over these segments. The order of the segments is kept."""
    listed = [{"segment_id": each, "max_doc": count, "deletes": None} for each, count in segments.items()]
    settings = {"docstore_compression": "lz4", "docstore_blocksize": 16384}
    return json.dumps(
        {"index_settings": settings, "segments": listed, "schema": schema_of(definition), "opstamp": 0}, indent=1
    )


def schema_of(definition: IndexDefinition) -> list[object]:
    """Return the schema of an index in the form that tantivy writes."""
    number = {"indexed": False, "fieldnorms": False, "fast": True, "stored": False}
    columns: list[object] = []
    for column in definition.columns:
        indexing = {"record": "position", "fieldnorms": True, "tokenizer": tokenizer_of(definition, column)}
        text = {"indexing": indexing, "stored": False, "fast": False}
        columns.append({"name": column, "type": "text", "options": text})
    return [*columns, {"name": ROW_FIELD, "type": "u64", "options": number}]


def corrupt(where: str, what: str) -> Corrupt:
    """Return the error for a full-text segment with files that `fulltext.build` cannot have written."""
    return damaged(where, f"not the files of a full-text segment: {what}")


def _segment(entry: object, where: str) -> tuple[str, int]:
    match entry:
        case {"segment_id": str(segment), "max_doc": int(count), "deletes": None} if (
            _SEGMENT_ID.fullmatch(segment) and 0 <= count < 2**31 and not isinstance(count, bool)
        ):
            return segment, count
        case _:
            raise corrupt(where, f"{META} lists {shortened(repr(entry))} as a segment")


def _check_file(data: memoryview, name: str, where: str) -> None:
    """Compare the file with its tantivy footer: JSON with a CRC-32, the length of the JSON, and a magic number."""
    try:
        length, magic = _FOOTER_END.unpack(data[-_FOOTER_END.size :])
        end = len(data) - _FOOTER_END.size - length
        footer = bytes(data[max(end, 0) : -_FOOTER_END.size])
        version = json.loads(footer)["version"]
        release = {part: int(version[part]) for part in ("major", "minor", "patch")}
    except (ValueError, LookupError, TypeError, struct.error, RecursionError) as error:
        raise corrupt(where, f"{name} has no footer of tantivy") from error
    written = {"version": {**release, "index_format_version": _FILE_FORMAT}, "crc": zlib.crc32(data[: max(end, 0)])}
    # The checksum does not cover the footer. Therefore the footer is compared byte by byte with the footer that tantivy
    # writes.
    if magic != _FOOTER_MAGIC or end < 0 or footer != json.dumps(written, separators=(",", ":")).encode():
        raise corrupt(where, f"the checksum of {name} does not match")


# Composition of many full-text segments into one tantivy index.
#
# The composed index has hard links to the files of the segments, and one `meta.json` that lists all segments.


@dataclass(frozen=True, slots=True)
class Composed:
    """The origin of the documents in an index that combines the files of several directories.

    Tantivy segment number `i` comes from the directory at position `sources[i]` of the composed directories. `rows[p]`
    is the number of rows in the directory at position `p`.
    """

    sources: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Searcher:
    """An open composed index.

    The files are mapped into memory, so they may be deleted while the index is open. Threads may share an instance.
    """

    tantivy: tantivy.Searcher
    composed: Composed


def open_searcher(directories: Sequence[Path], definition: IndexDefinition, scratch: Path) -> Searcher:
    """Return a searcher over all `directories`. Raises `Corrupt` and tantivy's errors.

    `scratch` is an existing directory, which should be on the same file system as `directories`. No new file remains in
    `scratch`.
    """
    import tantivy

    with scratch_folder("fulltext", scratch) as root:
        composed = compose(directories, root / "composed", definition)
        return Searcher(tantivy.Index.open(str(root / "composed")).searcher(), composed)


def compose(directories: Sequence[Path], target: Path, definition: IndexDefinition) -> Composed:
    """Create `target` as one tantivy index over all `directories`, with hard links to the files. Raises `Corrupt`.

    Only files that a directory's `meta.json` lists are linked. The only new file in `target` is the `meta.json` of the
    new index.
    """
    target.mkdir()
    segments: dict[str, int] = {}
    sources: list[int] = []
    rows: list[int] = []
    for source, directory in enumerate(directories):
        own = read_meta(directory, definition)
        if again := own.keys() & segments.keys():
            raise corrupt(directory.name, f"segment {min(again)} also belongs to another split")
        segments.update(own)
        sources.extend([source] * len(own))
        rows.append(sum(own.values()))
        _link_segment_files(directory, target, own)
    (target / META).write_text(meta_of(segments, definition))
    return Composed(sources=tuple(sources), rows=tuple(rows))


def _link_segment_files(source: Path, target: Path, segments: Iterable[str]) -> None:
    # The directory also contains `meta.json`, tantivy's lock files and tantivy's list of managed files. Only writers
    # need these files.
    for name in (name for each in segments for name in names_of(each)):
        try:
            os.link(source / name, target / name)
        except OSError:  # the file system does not support hard links
            shutil.copyfile(source / name, target / name)
