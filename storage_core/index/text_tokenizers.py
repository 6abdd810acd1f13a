"""The tokenizers of full-text columns, by the names that segments record.

`raw` and `whitespace` are tantivy's own. `default` makes a word of each run of letters and digits with their combining
signs. `<language>_stem` reduces these words to their stems by Snowball. `cjk` also makes a word of each Chinese,
Japanese or Korean character, so that a query of several is a phrase. `ngram_<least>_<most>` indexes all runs of
characters of one length, one after the other, so that a query is a phrase of them and finds parts of words.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.settings.index import IndexDefinition

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
"""What `<language>` may be, with the name of its Snowball stemmer."""

MOST_GRAM: Final = 10

MOST_BYTES: Final = 65_530
"""Tantivy leaves a longer word out of an index. Decision 0181."""

_OPTION = "tokenizer"
_UNCHANGED: Final = (RAW, WHITESPACE)
"""Those of tantivy, which make the words that they have always made."""
_REVISION = 3
_SIGMA, _FINAL_SIGMA = "\N{GREEK SMALL LETTER SIGMA}", "\N{GREEK SMALL LETTER FINAL SIGMA}"
_NGRAM = re.compile(r"ngram_([1-9][0-9]?)_([1-9][0-9]?)", re.ASCII)
_USUAL_GRAM = 3  # of the lengths that an index allows this one: shorter runs are in most rows, longer ones are many

# As tantivy reads regular expressions. A sign that combines belongs to the letter before it.
_LETTER = r"\p{Alphabetic}\p{N}"
_LETTER_OR_SIGN = rf"{_LETTER}\p{{M}}\p{{Join_Control}}"
_IDEOGRAPH = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Bopomofo}"
    r"\x{3006}\x{3031}-\x{3035}\x{30FC}\x{FF70}\x{FF9E}\x{FF9F}"
)
_WORD = rf"[{_LETTER}][{_LETTER_OR_SIGN}]*"
_CJK_WORD = rf"[{_IDEOGRAPH}]\p{{M}}*|[[{_LETTER}]--[{_IDEOGRAPH}]][[{_LETTER_OR_SIGN}]--[{_IDEOGRAPH}]]*"


def known() -> str:
    """Return the names as a sentence lists them."""
    return f"{DEFAULT}, {RAW}, {WHITESPACE}, {CJK}, {', '.join(f'{each}_stem' for each in LANGUAGES)} or ngram_2_3"


def tokenizer_of(definition: IndexDefinition, column: str) -> str:
    """Return the tokenizer of a column: its own, `tokenizer.<column>`, else that of the index, `tokenizer`."""
    options = definition.options
    return options.get(f"{_OPTION}.{column}", options.get(_OPTION, DEFAULT))


def validate(definition: IndexDefinition) -> None:
    """Return only for options that say which tokenizer each column has. Raises `InvalidInput`."""
    options = {_OPTION, *(f"{_OPTION}.{column}" for column in definition.columns)}
    if unknown := sorted(definition.options.keys() - options):
        takes = f"full text takes `{_OPTION}`, and `{_OPTION}.<column>` of its columns"
        raise InvalidInput(f"index {definition.name!r}: unknown option {unknown[0]!r}; {takes}")
    for name in definition.options.values():
        if not _is_known(name):
            raise InvalidInput(f"index {definition.name!r}: tokenizer {name!r} is not one of {known()}")


def revision_of(definition: IndexDefinition) -> int | None:
    """Return which words the tokenizers of an index make, by number; None where they are those of the first release.

    Segments of another revision have other words, so they do not answer (decision 0181).
    """
    names = {tokenizer_of(definition, column) for column in definition.columns}
    return None if names <= {*_UNCHANGED} else _REVISION


def register(index: tantivy.Index, definition: IndexDefinition, *, marking: bool = False) -> None:
    """Let an open index tokenize what it is given: texts that `prepared` returned, or as they are for `marking`."""
    for name in {tokenizer_of(definition, column) for column in definition.columns} - {*_UNCHANGED}:
        index.register_tokenizer(name, _marker(name) if marking else _analyzer(name))


def folded(definition: IndexDefinition, column: str, text: str) -> str:
    """Return a text in which `ς` is `σ`, where the tokenizer of the column makes small letters of capital ones.

    Each letter is lowered by itself, so a capital sigma is always `σ`. Both have two bytes: places stay.
    """
    return text if tokenizer_of(definition, column) in _UNCHANGED else text.replace(_FINAL_SIGMA, _SIGMA)


def folded_rows(definition: IndexDefinition, rows: pa.Table) -> pa.Table:
    """Return rows whose texts are as `folded` returns each."""
    import pyarrow.compute as pc  # an open table needs none of it

    for column in definition.columns:
        if tokenizer_of(definition, column) not in _UNCHANGED:
            place = rows.schema.get_field_index(column)
            texts = pc.replace_substring(rows.column(place).cast(pa.string()), _FINAL_SIGMA, _SIGMA)
            rows = rows.set_column(place, column, texts)
    return rows


def prepared(text: str, length: int | None) -> str:
    """Return the text that a document has for a `folded` text of a column with this `gram_of`.

    Of n-grams that is all of them, one after the other.
    """
    if length is None or len(text) <= length:
        return text
    return "".join([text[start : start + length] for start in range(len(text) - length + 1)])


def words(definition: IndexDefinition, column: str, text: str) -> list[str]:
    """Return the words that the index has for a text of the column, in order."""
    prepared_text = prepared(folded(definition, column, text), gram_of(definition, column))
    return _analyzer(tokenizer_of(definition, column)).analyze(prepared_text)


def unstemmed(definition: IndexDefinition, column: str, text: str) -> list[str]:
    """Return the same words before they are reduced to their stems."""
    name = DEFAULT if has_stems(definition, column) else tokenizer_of(definition, column)
    return _analyzer(name).analyze(prepared(folded(definition, column, text), gram_of(definition, column)))


def has_stems(definition: IndexDefinition, column: str) -> bool:
    """Return whether the index has stems of the column's words, and not the words."""
    return tokenizer_of(definition, column).endswith("_stem")


def gram_of(definition: IndexDefinition, column: str) -> int | None:
    """Return how many characters a word of the column has; None where it has no n-grams."""
    return _gram(tokenizer_of(definition, column))


def expansion(definition: IndexDefinition) -> int:
    """Return how many times a text may grow while it is indexed, at most."""
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


@functools.lru_cache(maxsize=64)  # a regular expression over all of Unicode takes 20 ms to compile
def _analyzer(name: str) -> tantivy.TextAnalyzer:
    """The tokenizer of an index, for documents and queries alike."""
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
    """The same over texts that are not `prepared`: words with their places in them, of n-grams those below too."""
    import tantivy

    if (length := _gram(name)) is None:
        return _analyzer(name)
    tokenizer = tantivy.Tokenizer.ngram(min_gram=1, max_gram=length)
    return tantivy.TextAnalyzerBuilder(tokenizer).filter(tantivy.Filter.lowercase()).build()
