"""An Iceberg mirror that early 0.1 wrote is unchanged: publishing continues it and keeps its files."""

from __future__ import annotations

import zipfile

from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.log.mirror_metadata import newest_metadata
from storage_core.maintain.roots import Published, published_in_iceberg
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.golden.make_golden_iceberg import MIRRORS, NAME
from tests.support.changed_rows import opened, row

SHOWN = [1, 2, 4, 5]


def _golden() -> MemoryStore:
    store = MemoryStore(NAME)
    with zipfile.ZipFile(MIRRORS / "format-2-iceberg.zip") as archive:
        for key in archive.namelist():
            store.put(key, archive.read(key), Overwrite())
    return store


def test_the_mirror_goes_on_from_what_an_earlier_release_wrote() -> None:
    store = _golden()
    kinds = {parsed.kind for info in store.list("_iceberg/") if (parsed := parse(info.key))}
    assert kinds == {each for each in KeyKind if each.startswith("iceberg")}
    opened(store, 7).append([row(100)])
    done = opened(store, 8).publish("iceberg")
    assert (done.version, done.shown_as, done.commits) == (6, 6, 1)
    newest = newest_metadata(store)
    assert newest is not None
    assert [each.version for each in newest.metadata.snapshots] == [*SHOWN, 6]


def test_the_collector_keeps_what_it_names() -> None:
    store = _golden()
    kept = published_in_iceberg(store, (), cutoff_ms=0)
    table = opened(store, 7)
    splits = {key for version in SHOWN for key in table.log.snapshot(version=version).splits}
    of_mirror = {info.key for info in store.list("_iceberg/") if info.key.endswith(".avro")}
    assert kept == Published(frozenset(splits | of_mirror), 1)
