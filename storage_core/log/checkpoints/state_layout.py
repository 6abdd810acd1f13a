"""How the next state lists the live splits: which manifests stay, which are rewritten, what is new.

A policy and nothing else: no requests but the reads of manifests that it decides to rewrite. The work is proportional
to what is new, amortized: an entry is written once when it is new, and again only when the small manifest it lies in is
joined with others, or when more than a tenth of all entries is dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.log.files.columns import FILES_SCHEMA, without_paths
from storage_core.log.files.listed import ListedFiles, Part
from storage_core.log.files.live import LiveFiles
from storage_core.rows.sortable import bound_keys

MAX_DEAD_FRACTION = 0.1
MAX_SMALL_MANIFESTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The parts that stay as they are, the paths in them that are dead, and the entries to write, in their order."""

    kept: tuple[Part, ...]
    tombstones: frozenset[str]
    entries: pa.Table
    manifest_entries: int

    def chunks(self) -> list[pa.Table]:
        """Return the entries in pieces, a manifest each, as even as they come."""
        count = -(-self.entries.num_rows // self.manifest_entries)
        edges = [self.entries.num_rows * number // count for number in range(count + 1)] if count else []
        return [self.entries.slice(start, end - start) for start, end in pairwise(edges)]


def layout(files: LiveFiles, partitions: pa.Schema, *, manifest_entries: int, compact: bool = False) -> Layout:
    """Return how to list `files`: from what their state lists, or all anew without one or with `compact`.

    A manifest that is written has at most `manifest_entries`: of the usual number one opens in about 30 ms. They are in
    the order of `partitions`, the names and types of partition values.

    A path that was removed and came back must be alive in one manifest and dead in none: what lists it is rewritten.
    """
    listed = files.listed
    if listed is None or compact or not listed.closed or not listed.is_intact:
        return _anew(files, partitions, manifest_entries)
    dead, returned = _dead(files, listed)
    rewritten = [part for part in listed.parts if not returned.isdisjoint(part.rows)] if returned else []
    rewritten += _small(listed.parts, rewritten, manifest_entries)
    buried = {path for path in dead if any(path in part.rows for part in rewritten)} if rewritten else set()
    entries = sum(part.info.num_entries for part in listed.parts)
    if len(dead - buried) > MAX_DEAD_FRACTION * entries:
        return _anew(files, partitions, manifest_entries)
    # Only tombstones that are applied here are dropped: the others still hide entries of parts that stay (lesson 31).
    old = [without_paths(part.table, buried) for part in rewritten]
    return Layout(
        kept=tuple(part for part in listed.parts if part not in rewritten),
        tombstones=frozenset(dead - buried),
        entries=_sorted(pa.concat_tables([*old, files.added_table()]), partitions),
        manifest_entries=manifest_entries,
    )


def _anew(files: LiveFiles, partitions: pa.Schema, manifest_entries: int) -> Layout:
    entries = _sorted(files.table(), partitions)
    return Layout(kept=(), tombstones=frozenset(), entries=entries, manifest_entries=manifest_entries)


def _dead(files: LiveFiles, listed: ListedFiles) -> tuple[set[str], set[str]]:
    """All listed paths whose entries are dead, and those among them that are live by a later addition."""
    replaced = {path for path in files.replacing if listed.find(path) is not None}
    removed = files.removed if files.certain else {path for path in files.removed if listed.find(path) is not None}
    dead = listed.tombstones | removed | replaced
    return set(dead), set(dead & files.added.keys())


def _small(parts: tuple[Part, ...], rewritten: list[Part], manifest_entries: int) -> list[Part]:
    small = [part for part in parts if part.info.num_entries < manifest_entries // 2 and part not in rewritten]
    return small if len(small) >= MAX_SMALL_MANIFESTS else []


def _sorted(table: pa.Table, partitions: pa.Schema) -> pa.Table:
    """Order by partition as its type has it, window and path: neighbours in a query are neighbours in a manifest."""
    texts = ((pc.map_lookup(table.column("partitionValues"), each.name, "first"), each.type) for each in partitions)
    keys = [bound_keys(pa.concat_arrays([pa.array([], pa.string()), *found.chunks]), type_) for found, type_ in texts]
    keys += [table.column("windowStart"), table.column("path")]
    names = [f"key{number}" for number in range(len(keys))]
    order = pc.sort_indices(pa.table(keys, names=names), [(name, "ascending") for name in names])
    return table.take(order) if table.num_rows else FILES_SCHEMA.empty_table()
