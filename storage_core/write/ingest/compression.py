"""Decompression of landed text files. The first bytes of a file determine its codec. The file name is not used.

A file may consist of several streams (frames, members). The text of the file is the text of all streams in order. A
reader keeps a few megabytes of a file in memory. A truncated or damaged file raises `Corrupt`, because the codec cannot
return the rest of the text.

| Codec | Decompressed by |
|---|---|
| gzip | `gzip` of the standard library |
| Zstandard, bzip2, xz | the decoders of the standard library (for Zstandard, a backport of the decoder) |
| LZ4 (frames) | Arrow |
| Snappy (frames) | `cramjam`, which decodes one chunk at a time |
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any, BinaryIO, Final, Protocol, assert_never

import cramjam
import pyarrow as pa

from storage_core.base.errors import Corrupt, damaged_file_error

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST_WINDOW_BYTES = 2**27
"""The maximum window of Zstandard in bytes.

The decoder keeps the window in memory. Files with a compression level up to 22, or with the option `--long`, do not
exceed this window.
"""

_MOST_XZ_BYTES = 2**28
_READ_BYTES = 2**18
_BUFFER_BYTES = 2**20


class Codec(StrEnum):
    """A compression codec of text files. Messages show the value as the name of the codec."""

    GZIP = "gzip"
    ZSTANDARD = "Zstandard"
    BZIP2 = "bzip2"
    XZ = "xz"
    LZ4 = "LZ4"
    SNAPPY = "Snappy"


_MAGIC: Final = (
    (b"\\x1f\\x8b", Codec.GZIP),
    (b"[\\x50-\\x5f]\\x2a\\x4d\\x18|\\x28\\xb5\\x2f\\xfd", Codec.ZSTANDARD),
    (b"BZh[1-9](1AY&SY|\\x17rE8P\\x90)", Codec.BZIP2),
    (b"\\xfd7zXZ\\x00", Codec.XZ),
    (b"\\x04\\x22\\x4d\\x18", Codec.LZ4),
    (b"\\xff\\x06\\x00\\x00sNaPpY", Codec.SNAPPY),
)
_CODECS: Final = [(re.compile(magic, re.DOTALL), codec) for magic, codec in _MAGIC]


def codec_of(head: bytes) -> Codec | None:
    """Return the codec of a file that begins with these bytes, or None if no codec matches."""
    return next((codec for magic, codec in _CODECS if magic.match(head)), None)


def open_decompressed(file: BinaryIO, codec: Codec) -> io.BufferedReader:
    """Return a stream of the text of a compressed file. The stream cannot seek.

    Reads of the stream raise `Corrupt` if the file is truncated or damaged, or needs too much memory. The reads also
    raise the errors of the underlying file.
    """
    match codec:
        case Codec.GZIP:
            return io.BufferedReader(_Gzip(file), _BUFFER_BYTES)
        case Codec.ZSTANDARD | Codec.BZIP2 | Codec.XZ:
            return io.BufferedReader(_Streams(file, codec), _BUFFER_BYTES)
        case Codec.LZ4:
            return io.BufferedReader(_Lz4(file), _BUFFER_BYTES)
        case Codec.SNAPPY:
            return io.BufferedReader(_Snappy(file), _BUFFER_BYTES)
        case _:
            assert_never(codec)


class _Text(io.RawIOBase):
    """The text of a compressed file. `_next(most)` returns one to `most` bytes, or no bytes at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0

    def _next(self, most: int) -> bytes:
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Gzip(_Text):
    """The text of the members of a gzip file.

    If a member is damaged, the text before the damage is returned first. Then the error is raised.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        import gzip
        import zlib

        self._stream = gzip.GzipFile(fileobj=file)
        self._errors = (zlib.error, gzip.BadGzipFile)

    def _next(self, most: int) -> bytes:
        try:
            return self._stream.read1(most)
        except EOFError as error:
            raise _truncated(Codec.GZIP) from error
        except self._errors as error:
            raise _damaged(Codec.GZIP) from error


class _Decoder(Protocol):
    """A decoder of one stream: the common part of the decoders of bzip2, xz and Zstandard."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


class _Streams(_Text):
    """The decompressed text of a file that consists of one or more streams of bzip2, xz or Zstandard."""

    def __init__(self, file: BinaryIO, codec: Codec) -> None:
        super().__init__()
        self._file, self._codec = file, codec
        self._new, self._errors = _decoders(codec)
        self._decoder: _Decoder | None = None
        self._rest = b""

    def _next(self, most: int) -> bytes:
        while (decoder := self._decoder or self._first()) is not None:
            chunk, self._rest = self._rest, b""
            if not chunk and decoder.needs_input and not (chunk := self._file.read(_READ_BYTES)):
                raise _truncated(self._codec)
            try:
                text = decoder.decompress(chunk, most)
            except self._errors as error:
                raise _fault(self._codec, error) from error
            if decoder.eof:
                self._rest, self._decoder = decoder.unused_data, None
            if text:
                return text
        return b""

    def _first(self) -> _Decoder | None:
        """Return the decoder of the next stream, or None at the end of the file."""
        padding, rest = 0, self._rest or self._file.read(_READ_BYTES)
        while self._codec is Codec.XZ and rest.startswith(b"\0"):
            size, rest = len(rest), rest.lstrip(b"\0")
            padding += size - len(rest)
            rest = rest or self._file.read(_READ_BYTES)
        if padding % 4:  # as the specification of xz requires
            raise _damaged(self._codec)
        self._rest = rest
        self._decoder = self._new() if rest else None
        return self._decoder


def _decoders(codec: Codec) -> tuple[Callable[[], _Decoder], tuple[type[Exception], ...]]:
    """Return the constructor of a decoder for one stream, and the errors that the decoder raises."""
    if codec is Codec.BZIP2:
        import bz2

        return bz2.BZ2Decompressor, (OSError, ValueError, EOFError)
    if codec is Codec.XZ:
        import lzma

        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _MOST_XZ_BYTES), (lzma.LZMAError, EOFError)
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: MOST_WINDOW_BYTES.bit_length() - 1}
    return lambda: zstd.ZstdDecompressor(options=options), (zstd.ZstdError, EOFError)


class _Lz4(_Text):
    """The text of LZ4 frames."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._source = _Source(file)
        # Without threads. Arrow reads the file only during a read of the stream.
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._source, mode="r"), "lz4")

    def _next(self, most: int) -> bytes:
        try:
            data: bytes = self._stream.read(most)
        except OSError as error:
            if self._source.error is not None:
                raise self._source.error from error
            raise _truncated(Codec.LZ4) if "Truncated" in str(error) else _damaged(Codec.LZ4) from error
        return data


class _Source:
    """A file for Arrow that stores the error of a failed read.

    The stored error is needed, because Arrow also reports its own errors as `OSError`.
    """

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        """Leave the file open, because its owner closes it."""


_SNAPPY_START: Final = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_DATA: Final = (0x00, 0x01)
_FIRST_SKIPPABLE: Final = 0x80
_MOST_CHUNK_BYTES = 2**17
"""The maximum bytes of a chunk with text.

A chunk has at most 64 KiB of text, and compression can enlarge it a little.
"""
_CHUNKS_AT_ONCE = 16


class _Snappy(_Text):
    """The text of the chunks of Snappy's framing format."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._held = memoryview(b"")
        self._is_started = False

    def _next(self, most: int) -> bytes:
        while not self._held:
            chunks = [chunk for _ in range(_CHUNKS_AT_ONCE) if (chunk := self._chunk()) is not None]
            if not chunks:
                return b""
            try:
                self._held = memoryview(bytes(cramjam.snappy.decompress(_SNAPPY_START + b"".join(chunks))))
            except cramjam.DecompressionError as error:
                raise _damaged(Codec.SNAPPY) from error
        text, self._held = bytes(self._held[:most]), self._held[most:]
        return text

    def _chunk(self) -> bytes | None:
        """Return the next chunk with text, or None at the end of the file."""
        while head := self._exactly(4, may_end=True):
            kind, size = head[0], int.from_bytes(head[1:], "little")
            if not self._is_started and kind != _SNAPPY_START[0]:
                raise _damaged(Codec.SNAPPY)
            if kind in _SNAPPY_DATA:
                if size > _MOST_CHUNK_BYTES:
                    raise _damaged(Codec.SNAPPY)
                return head + self._exactly(size)
            if kind < _FIRST_SKIPPABLE:
                raise _damaged(Codec.SNAPPY)
            body = self._exactly(size)
            if kind == _SNAPPY_START[0]:
                self._is_started = True
                if head + body != _SNAPPY_START:
                    raise _damaged(Codec.SNAPPY)
        return None

    def _exactly(self, size: int, *, may_end: bool = False) -> bytes:
        data = b""
        while len(data) < size and (piece := self._file.read(size - len(data))):
            data += piece
        if len(data) < size and (data or not may_end):
            raise _truncated(Codec.SNAPPY)
        return data


def _fault(codec: Codec, error: Exception) -> Corrupt:
    # Only the text of the error distinguishes these cases.
    if "memory" in str(error).lower():
        return damaged_file_error(
            f"the {codec} data needs more memory than {_MOST_XZ_BYTES if codec is Codec.XZ else MOST_WINDOW_BYTES} "
            "bytes. Compress the file with a smaller window"
        )
    return _damaged(codec)


def _damaged(codec: Codec) -> Corrupt:
    return damaged_file_error(f"the {codec} data is damaged")


def _truncated(codec: Codec) -> Corrupt:
    return damaged_file_error(f"the {codec} data is truncated")
