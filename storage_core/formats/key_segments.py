"""Any text as one segment of an object key (docs/architecture/object-store.md, "Keys"): percent-encoded, reversible,
one spelling each.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote_to_bytes

from storage_core.errors import InvalidInput

_MAX_SEGMENT = 200
_EMPTY_SEGMENT = "%"
_SHORTENED = re.compile(r"(?:[A-Za-z0-9_.%-])+~[0-9a-f]{32}", re.ASCII)


def encode_segment(value: str) -> str:
    """Return `value` percent-encoded as one path segment: letters, digits, `_`, `-` and inner dots stay.

    Different values have different encodings; the empty string becomes a lone `%`. A first dot is always encoded, so
    `.` and `..` never appear. Raises `InvalidInput` for text that is not UTF-8 (lone surrogates).
    """
    if value == "":
        return _EMPTY_SEGMENT
    try:
        encoded = quote(value, safe="").replace("~", "%7E")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{value!r} is not valid Unicode text and cannot name an object") from error
    return "%2E" + encoded[1:] if encoded.startswith(".") else encoded


def decode_segment(segment: str) -> str:
    """Return the value that `encode_segment` turned into `segment`. Raises `InvalidInput` for any other text."""
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
    """Return the encoded value, cut and told apart by a digest when it is longer than 200 bytes."""
    encoded = encode_segment(value)
    if len(encoded) <= _MAX_SEGMENT:
        return encoded
    # File systems end a name at 255 bytes. "~" is never left bare by the encoding, so the cut form is unambiguous.
    digest = hashlib.sha256(value.encode()).hexdigest()[:32]
    return f"{encoded[: _MAX_SEGMENT - 33]}~{digest}"


def require_encoded(segment: str) -> str:
    """Return `segment` when `short_segment` writes it. Raises `InvalidInput` for any other text."""
    if len(segment) == _MAX_SEGMENT and _SHORTENED.fullmatch(segment):
        return segment
    decode_segment(segment)
    if len(segment) > _MAX_SEGMENT:
        raise InvalidInput(f"{segment!r} is longer than the {_MAX_SEGMENT} bytes that are written", segment=segment)
    return segment
