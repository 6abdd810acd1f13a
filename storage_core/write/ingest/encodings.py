"""Encodings of landed text. A stream in another encoding is converted to UTF-8 before its lines are read."""

from __future__ import annotations

import codecs
import io
import re
from typing import Any, BinaryIO, Final, cast

from storage_core.base.errors import InvalidInput, damaged_file_error

UTF8 = "utf-8"

_WIDE: Final = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
_OTHERS: Final = (
    *("latin-1", "windows-1252", *(f"iso8859-{part}" for part in (*range(2, 12), *range(13, 17)))),
    *(f"windows-{page}" for page in (1250, 1251, 1253, 1254, 1255, 1256, 1257, 1258)),
    *("cp437", "cp850", "cp866", "koi8-r", "koi8-u", "mac-roman"),
    *("shift_jis", "cp932", "euc-jp", "gb18030", "gbk", "big5", "euc-kr", "cp949"),
)
ENCODINGS: Final = (UTF8, *_WIDE, *_OTHERS)
_STEP_BYTES = 2**20
_NOT_UTF8 = b"\xff"
_SURROGATE = re.compile("[\ud800-\udfff]+")


def _canonical(name: str) -> str | None:
    try:
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        return None


_KNOWN: Final = frozenset(map(_canonical, ENCODINGS))
_WIDE_NAMES: Final = frozenset(map(_canonical, _WIDE))


def check_encoding(name: str) -> None:
    """Raise `InvalidInput` for an encoding that is not supported. Other spellings of a supported encoding are valid."""
    if _canonical(name) not in _KNOWN:
        raise InvalidInput(f"encoding {name!r} is not supported. Use one of {', '.join(ENCODINGS)}")


def is_utf8(name: str | None) -> bool:
    """Return whether text in the encoding is read without a conversion."""
    return name is None or _canonical(name) == UTF8


def is_wide(name: str | None) -> bool:
    """Return whether ASCII characters have zero bytes in this encoding."""
    return name is not None and _canonical(name) in _WIDE_NAMES


def open_recoded(stream: BinaryIO, encoding: str) -> BinaryIO:
    """Return a stream of the same text in UTF-8. The stream cannot seek.

    A character that is not valid in the encoding becomes a byte that is not UTF-8. Therefore the line with this
    character is rejected. A read raises `Corrupt` if the text ends inside a character, or cannot be divided into
    characters.
    """
    return cast("BinaryIO", io.BufferedReader(_Recoded(stream, encoding), _STEP_BYTES))


class _Recoded(io.RawIOBase):
    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        super().__init__()
        self._stream, self._encoding = stream, encoding
        errors = "surrogatepass" if is_wide(encoding) else "surrogateescape"
        self._decoder = codecs.getincrementaldecoder(encoding)(errors)
        self._held = memoryview(b"")
        self._is_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._held and not self._is_ended:
            chunk = self._stream.read(_STEP_BYTES)
            self._is_ended = not chunk
            try:
                text = self._decoder.decode(chunk, final=self._is_ended)
            except UnicodeDecodeError as error:
                raise damaged_file_error(
                    f"the text of the file is not {self._encoding}. Check the landing location's `encoding`"
                ) from error
            self._held = memoryview(_utf8(text))
        data = self._held[: len(buffer)]
        buffer[: len(data)] = data
        self._held = self._held[len(data) :]
        return len(data)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # bytes that are not text in the encoding
        return _NOT_UTF8.join(part.encode() for part in _SURROGATE.split(text))
