"""The form of texts, numbers and values in messages and listings.

- Readable numbers and lists: `1 row`, `2 rows`, or the first names and the number of the remaining names.
- Texts and values from outside get a limited length, and characters that control a terminal are removed or escaped.
- The search for repeated names takes linear time, because the input may be untrusted.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

MOST_LISTED: Final = 20
"""The maximum number of names in an error message. The report contains all names."""


def first_of(items: Sequence[object], most: int) -> list[object]:
    """Return the first `most` items. If there are more items, append the text `and N more`."""
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return [*items[:most], *more]


def capitalized(text: str) -> str:
    """Return the text with a capital first letter. The result can be the first word of a sentence."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[object]) -> str:
    """Return the first `MOST_LISTED` names as a text for an error.

    If there are more names, the text ends with `and N more`.
    """
    return ", ".join(map(str, first_of(names, MOST_LISTED)))


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Return a number with its noun: `1 row`, `2,000 rows`. `several` is the plural of the noun if it is irregular."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


_LIKELY = 0.6
_MOST_COMPARED = 1000
_LONGEST_NAME = 100


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a text that suggests the most similar known name, or an empty text if no known name is similar.

    The returned text has the form `. Did you mean 'x'?`. The function compares at most 1,000 names.
    """
    import difflib  # imported here because only an unknown name needs it

    by_folded = {each.casefold(): each for each in islice(known, _MOST_COMPARED)}
    close = difflib.get_close_matches(str(name)[:_LONGEST_NAME].casefold(), by_folded, 1, _LIKELY)
    return f". Did you mean {str(by_folded[close[0]])!r}?" if close else ""


def names_of(names: Sequence[str]) -> str:
    """Return the first `MOST_LISTED` names with commas between them. Each name is escaped and has a limited length."""
    return ", ".join(fitted(str(each), _LONGEST_NAME) for each in first_of(names, MOST_LISTED))


def unknown_names(noun: str, names: Sequence[str], known: Sequence[str], *, where: str = "") -> str:
    """Return the error message for names that a table does not have.

    The message contains the known names and the probable spelling.

    Args:
        noun: The kind of the names: `column` or `index`.
        names: The unknown names, at least one.
        known: All names of this kind that the table has.
        where: The setting or the argument that contains the names.
    """
    unknown = ", ".join(map(quoted, first_of(names, MOST_LISTED)))
    found = f"unknown {noun} {unknown}" if len(names) == 1 else f"unknown {noun}s {unknown}"
    has = f"The table has {names_of(known)}" if known else f"The table has no {noun}"
    return f"{f'{where}: ' if where else ''}{found}. {has}{did_you_mean(names[0], known)}"


def alternatives(names: Iterable[object]) -> str:
    """Return the names as a choice: `a`, `a or b`, `a, b or c`."""
    *first, last = map(str, names)
    return f"{', '.join(first)} or {last}" if first else last


def choice_of(subject: str, value: object, choices: Sequence[str]) -> str:
    """Return the error message for an invalid choice. The message contains the probable spelling.

    Args:
        subject: The option, argument or setting that has the value.
        value: The given value.
        choices: The valid values, at least one.
    """
    likely = did_you_mean(value, choices) if isinstance(value, str) else ""
    return f"{subject} is {quoted(value)}. Give {alternatives(choices)}{likely}"


_TAB = 4

# Tidemark's own texts contain shortened locations, and example locations in the advice. The function `shortened` must
# not change these locations.
_OURS = r"/{0,2}(?:bucket/prefix|…@?…?[).,:;]*)?(?:[\s'\"]|$)"
_LOCATION = re.compile(
    rf"([A-Za-z][A-Za-z0-9+.-]{{0,20}}:/|//|(?<![^\s'\"])[^\s'\"/:]*:(?=[^\s'\"]*@))(?!{_OURS})[^\s'\"]*"
)


def shortened(text: str, most: int = 200) -> str:
    """Return the first `most` characters of the text, escaped.

    If the text is longer, add the number of the omitted characters.
    """
    return escaped(text[:most]) + _more(len(text) - most, "character")


def fitted(text: str, most: int) -> str:
    """Return the escaped text with at most `most` characters. A shortened text ends with `…`.

    Names, tags and keys are shown in this form.
    """
    shown = escaped(text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def quoted(value: object, most: int = 80) -> str:
    """Return the Python notation of a value, with a limited length.

    A text is cut after `most` characters. For a list or an object, the result contains only the number of elements. The
    function never traverses the elements. For a value without a notation, the result contains only its type.
    """
    match value:
        case str():
            return repr(value[:most]) + _more(len(value) - most, "character")
        case bytes():
            return repr(value[:most]) + _more(len(value) - most, "byte")
        case dict():
            return f"an object of {counted(len(value), 'field')}"
        case list() | tuple():
            return f"a list of {counted(len(value), 'value')}"
        case int() if value.bit_length() > 64:
            return f"a whole number of {value.bit_length()} bits"
        case _:
            shown = repr(value)
            return f"an object of the type {type(value).__name__}" if shown.startswith("<") else shortened(shown, most)


def escaped(text: str, *, keep: str = "") -> str:
    """Return the text with an escape for each character that is not printable. Characters in `keep` are not escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)


def printable(text: str) -> str:
    """Return the text without characters that would control a terminal, for example its cursor or its colors.

    Line feeds stay, and tabs become spaces.
    """
    return "\n".join(escaped(each.expandtabs(_TAB)) for each in text.split("\n"))


class PrintableFormatter(logging.Formatter):
    """A formatter for log lines on a terminal that escapes texts, which may come from an untrusted store."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the printable text of the record."""
        return printable(super().format(record))


def log_to_stderr(level: int) -> None:
    """Write log messages of this level and above to standard error. Commands and jobs call this function."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def without_locations(text: str) -> str:
    """Return the text with `…` in place of everything after a URI's scheme. This part of a URI may contain a secret.

    The function does not change a URI that is already shortened, as in `s3://…`. The function also does not change
    examples in advice, such as `s3://bucket/prefix`.
    """
    return _LOCATION.sub(r"\1…", text)


def _more(count: int, noun: str) -> str:
    return f"… and {counted(count, 'more ' + noun)}" if count > 0 else ""


def most_frequent(counts: Iterable[Mapping[str, int]], others: str, longest: int, most: int = 50) -> dict[str, int]:
    """Return the total count of each of the `most` names with the largest counts.

    The entry `others` contains the sum of all other names.

    The total is exact. If a caller adds counts in several steps, the result may count a rare name under `others`. A
    name is cut at `longest` characters.
    """
    total = Counter[str]()
    for each in counts:
        for name, count in each.items():
            total[fitted(name, longest)] += count
    rest = total.pop(others, 0)
    commonest = dict(total.most_common(most))
    rest += total.total() - sum(commonest.values())
    return commonest | ({others: rest} if rest else {})


def repeated(names: Iterable[str]) -> list[str]:
    """Return each name that occurs more than once. The names are in the order of their first occurrence."""
    return [name for name, times in Counter(names).items() if times > 1]
