"""Any text is exactly one location, or is refused with a typed error.

The URI of a parsed location is parsed as the same location.

A refusal contains neither credentials nor parameters.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput
from storage_core.store.local import LocalStore
from storage_core.store.memory import MemoryStore
from storage_core.store.resolve import check_location, open_store
from storage_core.store.s3 import S3Store
from tests.support.scale import scaled

CANARY = "canary0"
WORDS = st.sampled_from(
    [
        "a", "b.c", "bucket", "x y", "ä", "..", ".", "", "%2e%2e", "%2F", "%0d%0a", "%00", "%", "%zz", "%C3%A4", "%FF",
        "\r\n", "\x00", "\x1b", "\x85", "\ud800", "\u2028", "a:b", "a@b", f"k:{CANARY}@h", f"{CANARY}@h", "localhost",
        "127.0.0.1", "[::1]", "evil.example", "#f", "+", "\\", "~", ".tmp",
    ]
)  # fmt: skip
SCHEMES = st.sampled_from(
    [
        "", "", "/", "//", "./", "file:", "file:/", "file://", "file:///", "FILE:///", "memory:", "memory://", "s3:",
        "s3:/", "s3://", "S3://", "s3a://", "gs://", "https://", "http:", "abfss://", "hdfs://", "x:", " s3://",
    ]
)  # fmt: skip
ENDPOINTS = st.sampled_from(
    [
        "https://h", "http://h:9000", "http://h:9000/", "HTTP://H", "http://h%0d%0a", "http://h\r\n", "http://h:0",
        "http://h:00080", "http://h:", "http://h:99999", f"http://u:{CANARY}@h", "ftp://h", "h:9000", "file:///x",
        "http://h/x", "http://h?x", "http://h#x", "http://[::1]:9000", "http://[::g]", "http://....", "http://h h",
        "//h", "http://\uff48", "http://h\\x", "",
    ]
)  # fmt: skip
VALUES = st.one_of(ENDPOINTS, ENDPOINTS.map(lambda each: quote(each, safe="", errors="replace")), WORDS)
PARAMETERS = st.tuples(
    st.sampled_from(["endpoint", "region", "path_style", "secret", "end%70oint", "", "REGION"]),
    st.one_of(VALUES, st.sampled_from(["eu-1", "true", CANARY])),
).map("=".join)
QUERIES = st.one_of(
    st.just(""), st.just("?"), st.lists(PARAMETERS, min_size=1, max_size=3).map(lambda each: "?" + "&".join(each))
)
WRITTEN = st.builds(
    lambda scheme, words, query: scheme + "/".join(words) + query, SCHEMES, st.lists(WORDS, max_size=4), QUERIES
)
GOOD = st.one_of(
    st.builds(
        lambda words: "memory://" + "/".join(words), st.lists(st.from_regex(r"[a-z]+", fullmatch=True), min_size=1)
    ),
    st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3).map(
        lambda each: "file:///" + "/".join(quote(part, safe="", errors="replace") for part in each)
    ),
    st.builds(
        lambda bucket, prefix, query: f"s3://{bucket}/{prefix}{query}",
        st.from_regex(r"[a-z0-9]{3,9}", fullmatch=True),
        st.from_regex(r"[a-z0-9 %=&+~-]{0,9}(/[a-z]{1,5})?", fullmatch=True),
        st.sampled_from(["", "?endpoint=http://h:9000", "?region=r-1", "?endpoint=https://h&path_style=false"]),
    ),
)


@pytest.fixture(autouse=True, scope="module")
def _no_environment() -> object:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "TIDEMARK_"))]:
            patch.delenv(name)
        yield


@settings(max_examples=scaled(2000))
@given(written=st.one_of(WRITTEN, GOOD, st.text(max_size=40)))
@example("file:/tmp")
@example("s3://bucket/x?endpoint=http://h%0d%0a")
@example("s3://bucket/x//")
@example("https://[")
@example(f"s3://bucket/k:{CANARY}@h")
def test_a_location_is_one_place_or_refused_without_a_secret(written: str) -> None:
    try:
        store = open_store(written)
    except InvalidInput as refused:
        message = f"{refused} {refused.context} {refused.__context__!r}"
        assert CANARY not in message
        assert not set(message) & {"\r", "\n", "\x00", "\x1b"}
        with pytest.raises(InvalidInput):
            check_location(written)
        return
    assert check_location(written) == written
    again = open_store(store.uri)
    assert (type(again), again.uri) == (type(store), store.uri)
    match store:
        case LocalStore():
            _is_the_folder(written, store)
        case MemoryStore():
            assert written.removesuffix("/").lower().removeprefix("memory://") == store.uri[len("memory://") :].lower()
            assert again is store
        case S3Store():
            assert CANARY not in store.uri
            assert written.partition("?")[0].removesuffix("/")[len("s3://") :] == store.uri.partition("?")[0][5:]
        case _:
            pytest.fail(f"{store} is no store that a location names")


def _is_the_folder(written: str, store: LocalStore) -> None:
    """Assert that the text is a path or URI of this folder. A path is resolved, and a URI is unescaped."""
    path = store.uri
    if not written.lower().startswith("file:"):
        assert path == Path(written).resolve().as_uri()
        return
    assert "://" in written
    named = "file:///" + written.split("://", 1)[1].split("/", 1)[1]
    assert Path(path[7:]) == Path(quote(os.fsencode(_decoded(named[7:]))))


def _decoded(text: str) -> str:
    return str(Path(unquote(text, errors="strict")).resolve())


@pytest.mark.parametrize(
    "written",
    [
        "file:/tmp", "file:tmp", "file:///a%2Fb", "file:///%2e%2e/x", "file:///a/../b", "file:///a%00", "file:///a%0a",
        "file:///%FF", "file:///100%", "file://u:p@/x", "s3:bucket/x", "s3:/bucket/x", "s3://bucket//", "s3://b..d/x",
        "s3:///x", "s3://bucket/a/../b", "s3://bucket/x\n", "s3://bucket/x?endpoint=http://h%0d%0a",
        "s3://bucket/x?endpoint=http://h%0d%0a.example", "s3://bucket/x?endpoint=http://h:0", "s3://bucket/x?region=%",
        "s3://bucket/x?endpoint=http://....", "memory://..", "memory://a/../b", "a:b/c", "a\nb", "k:v@bucket/x",
        "x" * 5000,
    ],
)  # fmt: skip
def test_what_would_become_another_place_is_refused(written: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(written)
