"""Sources of a search for what is not merged: whole rows of generations and of logs, and all others above the base."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyroaring import BitMap

from storage_core.formats import generation_manifest
from storage_core.formats.bundle import checksum
from storage_core.index.bitmap import unpacked_bitmaps
from storage_core.index.cache import SegmentCache
from storage_core.index.coverage import Coverage
from storage_core.index.segments import build_rows, fingerprint_of
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.bitmap_rows import rows_that_meet
from storage_core.read.log_runs import LoggedRows
from storage_core.read.overlay import Overlay, WholeRows
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import conditions
from storage_core.region import generation_segments
from storage_core.search.kept import Kept
from storage_core.search.source import InSplit, Origin, Source, chosen, require_within
from storage_core.settings.index import IndexDefinition


def unmerged_sources(
    store: ObjectStore, covered: Coverage, cache: SegmentCache, overlay: Overlay, *, kept: Kept
) -> list[Source]:
    """Return the sources of what is not merged: generations by region and number, logs by region, the rest.

    What is indexed of a log stays in `kept`.
    """
    generations = sorted(overlay.generations, key=lambda each: (each.generation.region, each.generation.generation))
    logs = sorted(overlay.logs, key=lambda each: (each.region, each.entries[0]))
    return [
        *(_generation(store, covered, cache, each) for each in generations),
        *(_run(covered, cache, each, kept) for each in logs),
        *([_rest(covered, cache, overlay.rest)] if overlay.rest.num_rows else []),
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Unmerged:
    """Rows in memory; `made` returns the directory with their files, `named` text that fixes what is in these."""

    definition: IndexDefinition
    origin: Origin
    rows: pa.Table
    hidden: BitMap
    named: Callable[[], str]
    made: Callable[[], Path]
    segment_bytes: int | None = None

    @property
    def name(self) -> str:
        return self.named()

    @property
    def splits(self) -> tuple[str, ...]:
        return ()

    @property
    def is_near(self) -> bool:
        return True

    def count(self) -> int:
        return int(self.rows.num_rows)

    def directory(self) -> Path:
        return self.made()

    def ranged(self) -> None:
        return None

    def matching(self, condition: Predicate) -> BitMap:
        return unpacked(self.directory(), self.definition, condition, self.count)

    def low(self) -> None:
        return None

    def between(self, _: Sequence[int]) -> None:
        return None

    def in_splits(self, _: Sequence[int]) -> Iterable[InSplit]:
        return ()

    def deleted(self) -> BitMap:
        return self.hidden

    def take(self, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
        require_within(rows, self.count(), self.name)
        return self.rows.select(chosen(self.rows.schema, columns).names).take(pa.array(rows, pa.int64()))


def _generation(store: ObjectStore, covered: Coverage, cache: SegmentCache, whole: WholeRows) -> _Unmerged:
    """The whole rows of a generation, by its segment where there is one."""
    definition, generation = covered.definition, whole.generation
    segment = generation_segments.segment_for(generation, definition, whole.rows.num_rows, whole.order)
    source = f"{fingerprint_of(definition)}\n{whole.order}\n{generation_manifest.encode(generation).decode()}"

    def made() -> Path:
        files = partial(generation_segments.files, store, segment, definition, whole.rows)
        return cache.built(f"generation-{generation.path}", source, files)

    name, size = f"generation-{generation.path} {checksum(source.encode())}", None if segment is None else segment.size
    origin = Origin("generation", generation.path, None if segment is None else segment.path)
    return _Unmerged(definition, origin, whole.rows, whole.deleted, lambda: name, made, size)


def _run(covered: Coverage, cache: SegmentCache, run: LoggedRows, kept: Kept) -> _Unmerged:
    """Whole rows of entries of a log, whose files are made once."""
    definition, name = covered.definition, run.name

    def made() -> Path:
        known = (name, fingerprint_of(definition), "files")
        files = kept.values.made(
            known, dict, lambda: build_rows(run.rows, definition), lambda each: sum(map(len, each.values()))
        )
        return cache.passing(files)

    return _Unmerged(definition, Origin("log", run.region), run.rows, run.deleted, lambda: name, made)


def _rest(covered: Coverage, cache: SegmentCache, rows: pa.Table) -> _Unmerged:
    """Rows that records of several generations or entries make together, or with the base."""

    def named() -> str:
        sink = pa.BufferOutputStream()
        texts = rows.select(list(covered.definition.columns)).combine_chunks()
        with pa.ipc.new_stream(sink, texts.schema) as writer:
            writer.write_table(texts)
        return f"rest {checksum(sink.getvalue())}"

    definition, origin = covered.definition, Origin("records", "records over the base")
    return _Unmerged(definition, origin, rows, BitMap(), named, lambda: cache.passing(build_rows(rows, definition)))


def unpacked(directory: Path, definition: IndexDefinition, condition: Predicate, count: Callable[[], int]) -> BitMap:
    """Return the rows that meet a condition, by an unpacked segment of bitmaps. Raises `Corrupt`."""
    wanted = {each.column for each in conditions(condition)}
    columns = {name: unpacked_bitmaps(directory, definition, name) for name in wanted}
    return rows_that_meet(condition, columns, count)
