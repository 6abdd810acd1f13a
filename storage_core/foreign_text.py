"""Text and values of others as messages show them: of bounded length, and with nothing that steers a terminal."""

from __future__ import annotations

import logging
import re
import sys

from storage_core.wording import counted

_TAB = 4

# Words of ours, such as advice has: a scheme alone, and what is left out already.
_OURS = r"/{0,2}(?:bucket/prefix|…@?…?[),:;]*)?(?:[\s'\"]|$)"
_LOCATION = re.compile(
    rf"([A-Za-z][A-Za-z0-9+.-]{{0,20}}:/|//|(?<![^\s'\"])[^\s'\"/:]*:(?=[^\s'\"]*@))(?!{_OURS})[^\s'\"]*"
)


def shortened(text: str, most: int = 200) -> str:
    """Return the first `most` characters of the text, escaped, and how many more there are."""
    return escaped(text[:most]) + _more(len(text) - most, "character")


def fitted(text: str, most: int) -> str:
    """Return the text, escaped, in at most `most` characters: for names, tags and keys. What is cut ends with `…`."""
    shown = escaped(text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def quoted(value: object, most: int = 80) -> str:
    """Return a value as Python writes it: of text its first `most` characters, of a list or an object how many it has.

    What a list or an object holds is never walked through.
    """
    match value:
        case str():
            return repr(value[:most]) + _more(len(value) - most, "character")
        case bytes():
            return repr(value[:most]) + _more(len(value) - most, "byte")
        case dict():
            return f"an object of {len(value)} fields"
        case list() | tuple():
            return f"a list of {len(value)} values"
        case int() if value.bit_length() > 64:
            return f"a whole number of {value.bit_length()} bits"
        case _:
            return shortened(repr(value), most)


def escaped(text: str, *, keep: str = "") -> str:
    """Return the text with each character that does not print as its escape, but for those of `keep`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)


def printable(text: str) -> str:
    """Return text for a terminal that moves no cursor and changes no color. Line feeds stay, and tabs become spaces."""
    return "\n".join(escaped(each.expandtabs(_TAB)) for each in text.split("\n"))


class PrintableFormatter(logging.Formatter):
    """Formats the lines of a log for a terminal. Names and messages may be from storage that somebody else wrote."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the printable text of the record."""
        return printable(super().format(record))


def log_to_stderr(level: int) -> None:
    """Let this process log to standard error from this level on, as commands and jobs do."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def without_locations(text: str) -> str:
    """Return the text with all that follows the scheme of a URI left out: there may be a secret in it.

    What is left out already, as in `s3://…`, and what advice names, as in `s3://bucket/prefix`, stays as it is.
    """
    return _LOCATION.sub(r"\1…", text)


def _more(count: int, noun: str) -> str:
    return f"… and {counted(count, 'more ' + noun)}" if count > 0 else ""
