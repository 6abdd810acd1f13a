"""What a full-text index makes words of: the tokenizers that a column may have, by the names that segments record.

`default`, `raw` and `whitespace` are tantivy's own. `<language>_stem` reduces the words of `default` to their stems by
Snowball; `ngram_<least>_<most>` makes every run of so many characters, in lower case, a word: it finds parts of words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from storage_core.errors import InvalidInput
from storage_core.settings.index import IndexDefinition

if TYPE_CHECKING:
    import tantivy

DEFAULT: Final = "default"
RAW: Final = "raw"
WHITESPACE: Final = "whitespace"
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
_OPTION = "tokenizer"
_OWN: Final = (DEFAULT, RAW, WHITESPACE, "en_stem")
"""Those that tantivy knows by itself; an index of early 0.1 has no others."""
_NGRAM = re.compile(r"ngram_([1-9][0-9]?)_([1-9][0-9]?)", re.ASCII)
_LONGEST_BYTES = 40  # as of `default`: a longer word is none


def known() -> str:
    """Return the names as a sentence lists them."""
    return f"{DEFAULT}, {RAW}, {WHITESPACE}, {', '.join(f'{each}_stem' for each in LANGUAGES)} or ngram_2_3"


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


def register(index: tantivy.Index, definition: IndexDefinition) -> None:
    """Let an open index make words of what it is asked and given."""
    for name in {tokenizer_of(definition, column) for column in definition.columns} - {*_OWN}:
        index.register_tokenizer(name, _analyzer(name))


def lowered(definition: IndexDefinition, column: str, text: str) -> str:
    """Return a part of a word as the column's tokenizer has it, but for the stem."""
    return text if tokenizer_of(definition, column) in (RAW, WHITESPACE) else text.lower()


def is_part_of_a_word(definition: IndexDefinition, column: str, text: str) -> bool:
    """Tell whether a word of the column may begin with this text."""
    match tokenizer_of(definition, column):
        case "raw":
            return True
        case "whitespace":
            return not any(character.isspace() for character in text)
        case name if _NGRAM.fullmatch(name):
            return len(text) <= _grams(name)[1]
        case _:
            return text.isalnum()


def _is_known(name: str) -> bool:
    if name in _OWN or name.removesuffix("_stem") in LANGUAGES:
        return name in _OWN or name.endswith("_stem")
    if not _NGRAM.fullmatch(name):
        return False
    least, most = _grams(name)
    return least <= most <= MOST_GRAM


def _grams(name: str) -> Sequence[int]:
    found = _NGRAM.fullmatch(name)
    return [int(each) for each in found.groups()] if found else []


def _analyzer(name: str) -> tantivy.TextAnalyzer:
    import tantivy

    if grams := _grams(name):
        least, most = grams
        tokenizer = tantivy.Tokenizer.ngram(min_gram=least, max_gram=most)
        return tantivy.TextAnalyzerBuilder(tokenizer).filter(tantivy.Filter.lowercase()).build()
    stemmer = tantivy.Filter.stemmer(LANGUAGES[name.removesuffix("_stem")])
    words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    return (
        words.filter(tantivy.Filter.remove_long(_LONGEST_BYTES))
        .filter(tantivy.Filter.lowercase())
        .filter(stemmer)
        .build()
    )
