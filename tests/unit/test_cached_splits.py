"""The disk cache for parts of splits and other objects with a known checksum.

Answers are right in every state of the cache, and the cache stays below its size limit.
"""

from __future__ import annotations

import os
import resource
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from pyroaring import BitMap

from storage_core.base.errors import InvalidInput
from storage_core.base.limits import CacheSettings
from storage_core.base.process import remove_abandoned, scratch_folder
from storage_core.data.formats.avro_state import decode_state
from storage_core.data.formats.keys import LOG_PREFIX, state_key
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.log.deletion_vector import encode, stored
from storage_core.split import metadata as row_groups
from storage_core.split import verification
from storage_core.split.deletion_vectors import deleted_rows
from storage_core.split.fetch import Footers
from storage_core.split.read import open_split
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import IfAbsent, IfMatch
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.store.pieces import TEMPORARY, BoundedFolder, CacheCounts, CachedPieces, Piece, cached_pieces
from storage_core.write.region import generation
from tests.support.elsewhere import Elsewhere
from tests.support.events import context
from tests.support.ids import SeededIds
from tests.support.limits import limited
from tests.support.log_tables import log_on, metadata, split

ROWS = 3_000
NAMES = ["a", "b", "c"]
BOUND = 8 * 2**20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "ROWS_PER_GROUP", 1_000)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 0)


@pytest.fixture
def store(tmp_path: Path) -> MeteredStore:
    (tmp_path / "store").mkdir()
    return MeteredStore(Elsewhere(tmp_path / "store"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "home" / "cache"


def cache(place: Path, most_bytes: int = BOUND) -> CachedPieces:
    """Return the cache as a new process opens it."""
    return CachedPieces(BoundedFolder(place, most_bytes))


def rows_of(seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table({name: random.integers(0, 2**62, ROWS) for name in NAMES})


def written(store: MeteredStore, seed: int = 1) -> Add:
    rows = rows_of(seed)
    (add,) = sort_and_write(store, rows, context=context(rows.schema, TableConfig()), ids=SeededIds(seed), now_ms=1)
    return add


def read(store: MeteredStore, add: Add, cached: CachedPieces, columns: list[str] | None = None) -> pa.Table:
    return open_split(store, add, whole=False, footers=Footers(cached)).read(columns)


def made_folder(path: Path) -> Path:
    path.mkdir()
    return path


def taken(place: Path) -> int:
    return sum(each.lstat().st_blocks * 512 for each in place.rglob("*"))


def gets(store: MeteredStore, ask: Callable[[], object]) -> int:
    before = store.requests["get"]
    ask()
    return store.requests["get"] - before


def test_what_was_fetched_once_is_not_fetched_by_a_process_that_begins(store: MeteredStore, place: Path) -> None:
    add = written(store)
    cached = cache(place)
    assert gets(store, lambda: read(store, add, cached, ["a"])) == 1 + 3
    assert cached.counts == CacheCounts(misses=4)
    second = cache(place)
    assert gets(store, lambda: read(store, add, second, ["a"])) == 0
    assert (second.counts.hits, second.counts.misses) == (4, 0)
    assert second.counts.bytes > 8 * ROWS
    third = cache(place)
    assert gets(store, lambda: read(store, add, third)) == 3  # the columns that are not in the cache
    assert third.counts - CacheCounts(bytes=third.counts.bytes) == CacheCounts(hits=4, misses=6)
    assert read(store, add, cache(place)).equals(rows_of(1))
    assert gets(store, lambda: read(store, add, cache(place))) == 0


def test_a_split_that_is_read_whole_is_kept_whole(store: MeteredStore, place: Path) -> None:
    add = written(store)
    for expected in (1, 0):
        found: list[pa.Table] = []
        split = lambda: found.append(open_split(store, add, footers=Footers(cache(place))).read())  # noqa: B023, E731
        assert gets(store, split) == expected
        assert found[0].equals(rows_of(1))
    assert gets(store, lambda: read(store, add, cache(place))) == 0  # the cache has the whole split


def test_whoever_has_no_footers_reads_the_store(store: MeteredStore, place: Path) -> None:
    add = written(store)
    read(store, add, cache(place))
    store.delete([add.path])
    assert read(store, add, cache(place)).equals(rows_of(1))
    with pytest.raises(Exception, match="the log contains this split, but the store does not"):
        open_split(store, add)


def test_files_are_their_owners_alone_and_tell_nothing(store: MeteredStore, place: Path) -> None:
    before = os.umask(0)
    try:
        add = written(store)
        read(store, add, cache(place))
    finally:
        os.umask(before)
    (file,) = place.iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.name) == len("0" * 32 + ".split")
    assert file.stat().st_size <= add.size


def test_a_stored_deletion_vector_is_kept_with_its_split(store: MeteredStore, place: Path) -> None:
    add, gone = written(store), BitMap(range(0, ROWS, 2))
    store.put("deleted", encode(gone), IfAbsent())
    marked = replace(add, deletionVector=stored("deleted", encode(gone)))
    for expected in (2 + 3, 0):
        assert gets(store, lambda: read(store, marked, cache(place), ["a"])) == expected
    assert read(store, marked, cache(place)).equals(rows_of(1).take(list(range(1, ROWS, 2))))
    for file in place.iterdir():
        os.truncate(file, file.stat().st_size - 1)
    assert read(store, marked, cache(place)).num_rows == ROWS // 2


# Every state of the files.

Spoil = Callable[[Path, Path], None]


def flip(at: float) -> Spoil:
    def spoil(file: Path, _other: Path) -> None:
        data = bytearray(file.read_bytes())
        data[int(at * (len(data) - 1))] ^= 4
        file.write_bytes(data)

    return spoil


def cut(at: float) -> Spoil:
    return lambda file, _other: os.truncate(file, int(at * file.stat().st_size))


def hole(file: Path, _other: Path) -> None:
    size = file.stat().st_size
    os.truncate(file, 0)
    os.truncate(file, size)


def swap(file: Path, other: Path) -> None:
    between = file.with_name("between")
    file.rename(between)
    other.rename(file)
    between.rename(other)


def link(file: Path, _other: Path) -> None:
    mine = file.parents[1] / "mine"
    mine.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(mine)


def loop(file: Path, _other: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def folder(file: Path, _other: Path) -> None:
    file.unlink()
    (file / "in it").mkdir(parents=True)


def pipe(file: Path, _other: Path) -> None:
    file.unlink()
    os.mkfifo(file)


SPOILT: dict[str, Spoil] = {
    **{f"a bit at {at} is another": flip(at) for at in (0.001, 0.2, 0.5, 0.8, 0.9999)},
    **{f"cut at {at}": cut(at) for at in (0, 0.001, 0.3, 0.7, 0.9999)},
    "nothing but zeros": hole,
    "exchanged with another": swap,
    "gone": lambda file, _other: file.unlink(),
    "a link to what is right": link,
    "a link to itself": loop,
    "a folder": folder,
    "a pipe": pipe,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A read through a cache, its expected answer, and the number of GETs that the read makes in any case."""

    ask: Callable[[CachedPieces], object]
    tells: object
    always: int = 0


def of_split(store: MeteredStore, seed: int, *, whole: bool) -> Asked:
    add = written(store, seed)
    return Asked(lambda cached: open_split(store, add, whole=whole, footers=Footers(cached)).read(), rows_of(seed))


def of_manifest(store: MeteredStore, seed: int) -> Asked:
    log = log_on(store, seed=seed)
    splits = [split(f"{seed}-{number}") for number in range(100)]
    log.checkpoint(log.commit(log.create(metadata()), splits, operation="TEST").snapshot)

    def ask(cached: CachedPieces) -> list[str]:
        return sorted(replace(log, cached=cached).snapshot(version=1).splits)

    return Asked(ask, sorted(each.path for each in splits), always=2)  # GETs of hint and state


def of_vector(store: MeteredStore, seed: int) -> Asked:
    gone = BitMap(range(seed, ROWS, 2))
    store.put("deleted", encode(gone), IfAbsent())
    marked = replace(split("marked", ROWS), deletionVector=stored("deleted", encode(gone)))
    return Asked(lambda cached: deleted_rows(store, marked, cached), gone)


def of_generation(store: MeteredStore, seed: int) -> Asked:
    data = np.random.default_rng(seed).bytes(20_000)
    store.put("filter", data, IfAbsent())
    checksum = xxhash.xxh3_64_hexdigest(data)
    return Asked(lambda cached: generation.read_verified(store, "filter", checksum, cached), data)


def of_chunks(store: MeteredStore, seed: int) -> Asked:
    rows = rows_of(seed).sort_by("a")
    chunks, data = generation.encode_sorted(rows, ["a"])
    store.put("records", data, IfAbsent())

    def ask(cached: CachedPieces) -> pa.Table:
        return pa.concat_tables(generation.find_key(store, "records", chunks, rows.select(["a"]), cached=cached))

    return Asked(ask, rows)


KINDS: dict[str, Callable[[MeteredStore, int], Asked]] = {
    "whole": partial(of_split, whole=True),
    "in parts": partial(of_split, whole=False),
    "a manifest": of_manifest,
    "a deletion vector": of_vector,
    "a file of a generation": of_generation,
    "chunks of a generation": of_chunks,
}


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_entry_is_fetched_and_written_again(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str, kind: str
) -> None:
    monkeypatch.setattr(generation, "CHUNK_RECORDS", 1_000)
    stores = [MeteredStore(Elsewhere(made_folder(tmp_path / name))) for name in ("one", "two")]
    first, second = (KINDS[kind](store, seed) for seed, store in enumerate(stores, 1))

    def fetched() -> int:
        before = sum(store.requests["get"] for store in stores)
        assert [each.ask(cache(place)) for each in (first, second)] == [first.tells, second.tells]
        return sum(store.requests["get"] for store in stores) - before - first.always - second.always

    first.ask(cache(place))
    (file,) = place.iterdir()
    second.ask(cache(place))
    (other,) = set(place.iterdir()) - {file}
    assert fetched() == 0
    SPOILT[spoilt](file, other)
    assert fetched() > 0
    assert fetched() == 0
    assert not file.is_symlink()
    assert {each.name for each in place.iterdir()} == {file.name, other.name}


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_of_stores_in_memory_and_on_disk_nothing_is_kept(scheme: str, tmp_path: Path, place: Path) -> None:
    class Near(MemoryStore):
        uri = f"{scheme}:///{tmp_path}"

    cached = cache(place)
    for kind, of in KINDS.items():
        asked = of(MeteredStore(Near(kind)), 1)
        assert asked.ask(cached) == asked.tells
    assert cached.counts == CacheCounts()
    assert not place.exists()


@pytest.mark.parametrize("bytes_more", [1, 10_000, 2**40])
@pytest.mark.parametrize("kind", ["a manifest", "a file of a generation"])
def test_of_what_nobody_says_how_long_it_is_a_longer_entry_is_no_other(
    store: MeteredStore, place: Path, kind: str, bytes_more: int
) -> None:
    asked = KINDS[kind](store, 1)
    asked.ask(cache(place))
    (file,) = place.iterdir()
    size = file.stat().st_size
    os.truncate(file, size + bytes_more)
    for expected in (1, 0):
        assert gets(store, lambda: asked.ask(cache(place))) == asked.always + expected
    assert asked.ask(cache(place)) == asked.tells
    assert file.stat().st_size == size


def test_what_is_not_named_by_its_content_is_not_kept(
    store: MeteredStore, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """States and version files have no stored checksum, so they are not cached.

    A damaged manifest is not cached either.
    """
    asked = of_manifest(store, 1)
    (info,) = decode_state(store.get(state_key(1)).data, "").manifests
    sound = store.get(LOG_PREFIX + info.path)
    store.put(LOG_PREFIX + info.path, sound.data[:-1], IfMatch(sound.etag))
    for _ in range(2):
        assert asked.ask(cache(place)) == asked.tells  # replayed from the version files
    assert not place.exists()
    assert "looking elsewhere" in caplog.text


def test_only_what_is_damaged_is_fetched_again(store: MeteredStore, place: Path) -> None:
    add = written(store)
    split = open_split(store, add, whole=False, footers=Footers(cache(place)))
    split.read()
    (file,) = place.iterdir()
    sound = file.read_bytes()
    places = verification.places(split.footer).reshape(-1, 2).tolist()
    for start, end in [*places, (add.footerStartOffset or 0, add.size)]:
        for position in (start, end - 1):
            data = bytearray(sound)
            data[position] ^= 1
            file.write_bytes(data)
            before = store.bytes_read
            assert read(store, add, cache(place)).equals(rows_of(1))
            assert store.bytes_read - before == end - start
            assert file.read_bytes() == sound


# Every state of the folder.


def made_a_file(place: Path) -> None:
    shutil.rmtree(place)
    place.write_bytes(b"mine")


def made_a_link(place: Path) -> None:
    place.rename(place.with_name("moved"))
    place.symlink_to(place.with_name("moved"))


FOLDERS: dict[str, Callable[[Path], None]] = {
    "a file": made_a_file,
    "a link": made_a_link,
    "writable by others": lambda place: place.chmod(0o777),
}


@pytest.mark.parametrize("become", FOLDERS)
def test_a_folder_that_may_not_be_used_is_left_alone(
    store: MeteredStore, place: Path, become: str, caplog: pytest.LogCaptureFixture
) -> None:
    add, cached = written(store), cache(place)
    read(store, add, cached, ["a"])
    FOLDERS[become](place)
    before = [(each, each.lstat().st_mtime_ns) for each in place.parent.rglob("*")]
    for _ in range(2):
        assert gets(store, lambda: read(store, add, cached)) == 1 + 3
    assert read(store, add, cached).equals(rows_of(1))
    assert cached.counts.failures >= 2
    assert [(each, each.lstat().st_mtime_ns) for each in place.parent.rglob("*")] == before
    assert len([each for each in caplog.records if "the cache is left out" in each.message]) == 1


def test_a_folder_that_is_removed_is_made_again(store: MeteredStore, place: Path) -> None:
    add, cached = written(store), cache(place)
    for _ in range(3):
        assert gets(store, lambda: read(store, add, cached)) > 0
        assert gets(store, lambda: read(store, add, cached)) == 0
        shutil.rmtree(place)
    assert cached.counts.failures == 0


def test_a_disk_that_is_full_costs_requests_and_nothing_else(store: MeteredStore, place: Path) -> None:
    add, cached = written(store), cache(place)
    for room in (0, 100, 9_000):
        with limited(resource.RLIMIT_FSIZE, room):
            assert read(store, add, cached).equals(rows_of(1))
    assert cached.counts.failures > 0
    assert read(store, add, cached).equals(rows_of(1))
    assert gets(store, lambda: read(store, add, cached)) == 0


# The size limit.


def pieces(number: int, size: int) -> Iterator[tuple[str, Piece, bytes]]:
    for each in range(number):
        data = np.random.default_rng(each).bytes(size)
        yield str(each), Piece(0, size, xxhash.xxh3_64_hexdigest(data)), data


def test_the_bound_is_held_and_what_was_used_stays(place: Path) -> None:
    cached, most = cache(place, 2**20), list(pieces(200, 10_000))
    for name, piece, data in most[:3]:
        cached.write("s3://x", "path", name, [(piece, data)])
        assert cached.read("s3://x", "path", name, [piece]) == [data]
    for name, piece, data in most[3:]:
        cached.write("s3://x", "path", name, [(piece, data)])
        assert taken(place) <= 2**20
    assert taken(place) > 2**19
    found = [name for name, piece, data in most if cached.read("s3://x", "path", name, [piece]) == [data]]
    assert found[:3] == ["0", "1", "2"]
    assert found[3:] == [str(each) for each in range(203 - len(found), 200)]


def test_what_was_used_longest_ago_goes_first(place: Path) -> None:
    cached, bound = cache(place, 2**20), BoundedFolder(place, 2**20)
    for name, piece, data in pieces(10, 10_000):
        cached.write("s3://x", "path", name, [(piece, data)])
        if int(name) % 2:
            cached.read("s3://x", "path", name, [piece])
    bound.shrink(sum(each.size_bytes for each in bound.entries()) // 2)
    found = [name for name, piece, _ in pieces(10, 10_000) if cached.read("s3://x", "path", name, [piece]) != [None]]
    assert found == ["1", "3", "5", "7", "9"]


def test_one_read_keeps_a_quarter_of_the_bound(place: Path) -> None:
    whole = cache(place, 2**20)
    for _ in range(3):
        one = whole.of_a_read()
        for name, piece, data in pieces(100, 10_000):
            if one.read("s3://x", "path", name, [piece]) == [None]:
                one.write("s3://x", "path", name, [(piece, data)])
        assert 2**18 - 20_000 <= taken(place) <= 2**18 + 100_000
        assert len(list(place.iterdir())) == 27
    assert (whole.counts.hits, whole.counts.misses) == (54, 246)
    assert {each.stat().st_mtime_ns > 10**18 for each in place.iterdir()} == {True}


@pytest.mark.parametrize("scans", [1, 8])
def test_scans_do_not_take_the_place_of_manifests(store: MeteredStore, place: Path, scans: int) -> None:
    """The cache is full of entries that were read. Then a new process reads a manifest and scans splits."""
    manifest, whole = of_manifest(store, 1), cache(place, 2**20)
    for name, piece, data in pieces(200, 10_000):
        whole.write("s3://x", "path", name, [(piece, data)])
        whole.read("s3://x", "path", name, [piece])
    manifest.ask(whole)
    for scan in range(scans):
        one = whole.of_a_read()
        for name, piece, data in pieces(100, 10_000):
            one.write("s3://x", f"scan {scan}", name, [(piece, data)])
    assert gets(store, lambda: manifest.ask(cache(place, 2**20))) == manifest.always
    assert taken(place) <= 2**20


def test_one_piece_that_is_too_large_is_not_kept(place: Path) -> None:
    cached = cache(place, 2**16)
    ((name, piece, data),) = pieces(1, 2**15)
    cached.write("s3://x", "path", name, [(piece, data)])
    assert cached.read("s3://x", "path", name, [piece]) == [None]


def test_several_remove_together_what_is_too_much_and_no_more(place: Path) -> None:
    caches = [cache(place, 2**20) for _ in range(4)]
    most = list(pieces(400, 10_000))
    begin = threading.Barrier(4)

    def use(number: int) -> int:
        begin.wait(60)
        largest = 0
        for name, piece, data in most[number::4]:
            caches[number].write("s3://x", "path", name, [(piece, data)])
            assert caches[number].read("s3://x", "path", name, [piece]) in ([data], [None])
            largest = max(largest, sum(each.size_bytes for each in BoundedFolder(place, 1).entries()))
        return largest

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(use, range(4))) <= 2**20
    assert taken(place) > 2**18
    assert sum((each.counts for each in caches), CacheCounts()).failures == 0


def test_what_is_not_of_the_cache_is_never_removed(place: Path) -> None:
    place.mkdir(mode=0o700, parents=True)
    (place / "mine.txt").write_text("mine")
    (place / "my folder").mkdir()
    (place / "tmp-mine.txt").write_text("mine")
    (place / "tmp-mine").mkdir()
    os.utime(place / "tmp-mine", (0, 0))
    (place / f"mine-{'0' * 16}").write_text("mine")
    (place / f"{'0' * 32}.split").mkdir()
    mine = {each.name for each in place.iterdir()}
    cached = cache(place, 2**20)
    for name, piece, data in pieces(5, 10_000):
        cached.write("s3://x", "path", name, [(piece, data)])
    assert BoundedFolder(place, 2**20).clear() >= 50_000
    assert {each.name for each in place.iterdir()} == mine


def test_a_folder_that_a_process_fills_stays_however_old_it_is(place: Path) -> None:
    place.mkdir(mode=0o700, parents=True)
    with scratch_folder("tmp", place) as folder:
        (folder / "part").write_bytes(b"0" * 10_000)
        os.utime(folder, (0, 0))
        BoundedFolder(place, 2**20).clear()
        assert (folder / "part").exists()


def test_an_entry_whose_removal_was_cut_short_is_removed_by_the_next_process(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.mkdir(mode=0o700, parents=True)
    (place / f"segment-{'0' * 16}").mkdir()
    with monkeypatch.context() as killed:
        killed.setattr("shutil.rmtree", lambda *_args, **_options: None)
        BoundedFolder(place, 2**20).clear()
    (left,) = place.iterdir()
    assert left.name.startswith(TEMPORARY)
    remove_abandoned(place)
    assert [*place.iterdir()] == []


# Settings.


@pytest.mark.parametrize(
    ("environment", "folder", "mib"),
    [
        ({}, "~/.cache/tidemark", 2048),
        ({"XDG_CACHE_HOME": "/x"}, "/x/tidemark", 2048),
        ({"XDG_CACHE_HOME": "x"}, "~/.cache/tidemark", 2048),
        ({"TIDEMARK_CACHE_DIR": "/mine", "XDG_CACHE_HOME": "/x"}, "/mine", 2048),
        ({"TIDEMARK_CACHE_MIB": "10"}, "~/.cache/tidemark", 10),
        ({"TIDEMARK_CACHE_MIB": "0"}, "~/.cache/tidemark", 0),
    ],
)
def test_the_environment_says_where_and_how_much(environment: dict[str, str], folder: str, mib: int) -> None:
    found = CacheSettings.of(environment)
    assert found == CacheSettings(folder=Path(folder).expanduser(), most_bytes=mib * 2**20)
    assert found.is_on == (mib > 0)


@pytest.mark.parametrize("text", ["two", "-1", "1.5", "1e3", "9" * 10, " 1", "٣"])
def test_a_size_that_is_none_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidInput, match="TIDEMARK_CACHE_MIB"):
        CacheSettings.of({"TIDEMARK_CACHE_MIB": text})


def test_a_cache_that_is_off_keeps_nothing(store: MeteredStore, place: Path) -> None:
    add, cached = written(store), cached_pieces(CacheSettings(folder=place, most_bytes=0))
    for _ in range(2):
        assert gets(store, lambda: read(store, add, cached)) == 4
    assert (place.exists(), cached.counts) == (False, CacheCounts())
