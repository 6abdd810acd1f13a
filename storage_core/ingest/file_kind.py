"""The kind of a file by its first bytes, for landed files that are neither text nor Parquet."""

from __future__ import annotations

import re

from storage_core.errors import unsound

HEAD_BYTES = 512
GZIP_MAGIC = b"\x1f\x8b"

_COMPRESSED = (
    (b"[\\x50-\\x5f]\\x2a\\x4d\\x18|\\x28\\xb5\\x2f\\xfd", "Zstandard"),
    (b"BZh[1-9](1AY&SY|\\x17rE8P\\x90)", "bzip2"),
    (b"\\xfd7zXZ\\x00", "xz"),
    (b"[\\x02\\x04]\\x22\\x4d\\x18", "LZ4"),
    (b"\\xff\\x06\\x00\\x00sNaPpY", "Snappy"),
    (b"\\x1f\\x9d", "compress"),
)
_ARCHIVES = (
    (b"PK(\\x03\\x04|\\x05\\x06)", "a zip archive"),
    (b"7z\\xbc\\xaf\\x27\\x1c", "a 7z archive"),
    (b".{257}ustar", "a tar archive"),
)
_OTHERS = (
    (b"PAR1\\x15", "a Parquet file, which needs `format: parquet`"),
    (b"Obj\\x01", "an Avro file"),
    (b"ORC[\\x00-\\x09\\x0b-\\x1f\\x80-\\xff]", "an ORC file"),
    (b"ARROW1\\x00", "an Arrow file"),
    (
        b"(\\xff\\xfe|\\xfe\\xff)(?=.*\\x00)",
        "UTF-16 text; write it as UTF-8",
    ),  # which has zeros in its ASCII characters
)
_EXPANDED = [
    *((re.compile(magic, re.DOTALL), f"compressed with {name}; only gzip is read") for magic, name in _COMPRESSED),
    *((re.compile(magic, re.DOTALL), f"{name}; land the files in it one by one") for magic, name in _ARCHIVES),
]
_NOT_TEXT = [*_EXPANDED, *((re.compile(magic, re.DOTALL), name) for magic, name in _OTHERS)]


def require_text(head: bytes) -> None:
    """Raise `Corrupt` that names the kind if these first `HEAD_BYTES` show another file than one of UTF-8 text."""
    for magic, kind in _NOT_TEXT:
        if magic.match(head):
            raise unsound(f"it is {kind}")


def require_uncompressed(head: bytes) -> None:
    """Raise `Corrupt` that names the compression or archive if these first `HEAD_BYTES` show one."""
    if head.startswith(GZIP_MAGIC):
        raise unsound("it is compressed with gzip; a Parquet file has its own compression")
    for magic, kind in _EXPANDED:
        if magic.match(head):
            raise unsound(f"it is {kind}")
