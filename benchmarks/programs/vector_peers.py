"""Nearest neighbours with Lance and with faiss. The Python of `peers.lance_python` runs this program.

Usage: `python -m benchmarks.programs.vector_peers FOLDER ENGINE METRIC FILTERS_AS_JSON [URI OPTIONS_AS_JSON]`. The
program reads `vectors.npy`, `queries.npy` and `rows.parquet` of the folder, and builds the index. Each query finds ten
rows without a filter. The first fifty queries also run with each filter. The program prints JSON with processor seconds
of the build and bytes per embedding of the index. For each filter, the JSON contains the milliseconds and the rows of
each query. If the argument ENGINE is `ask IVF_PQ`, the program builds no index, and runs only the first query on the
dataset at the URI. The program prints the milliseconds of this query.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Vectors = npt.NDArray[np.float32]
Ask = Callable[[Vectors, str | None], list[int]]
Built = tuple[dict[str, Any], Ask]

ROWS, FILTERED_QUERIES = 10, 50
PROBES, REFINE = 20, 4


def main(folder: str, engine: str, metric: str, filters: str, *where: str) -> None:
    """Print the measurements."""
    queries = np.load(Path(folder) / "queries.npy")
    if engine.startswith("ask"):
        import lance

        place, options = where
        started = time.perf_counter()
        _nearest(lance.dataset(place, storage_options=json.loads(options)), queries[0], None)
        print(json.dumps(1000 * (time.perf_counter() - started)))
        return
    vectors = np.load(Path(folder) / "vectors.npy")
    if engine == "faiss":
        found, ask = _faiss(vectors, metric)
    else:
        found, ask = _lance(vectors, Path(folder), engine, metric=metric)
    for name in ("", *json.loads(filters)):
        if name and engine == "faiss":
            continue
        for query in queries[:5]:
            ask(query, name or None)
        taken, rows = [], []
        for query in queries[: FILTERED_QUERIES if name else None]:
            started = time.perf_counter()
            rows.append(ask(query, name or None))
            taken.append(1000 * (time.perf_counter() - started))
        found["asked"][name] = {"ms": taken, "rows": rows}
    print(json.dumps(found))


def _lance(vectors: Vectors, folder: Path, engine: str, *, metric: str) -> Built:
    import lance

    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    rows = pq.read_table(folder / "rows.parquet").append_column("v", column)
    place = str(folder / f"{engine}.lance")
    dataset = lance.write_dataset(rows, place, mode="overwrite")
    before = _bytes(folder)
    started = time.process_time()
    sizes = {"num_partitions": max(1, round(math.sqrt(len(vectors))))}
    if engine == "IVF_PQ":
        sizes["num_sub_vectors"] = vectors.shape[1] // (8 if vectors.shape[1] % 8 == 0 else 5)
    dataset.create_index("v", engine, metric=metric, **sizes)
    cpu = time.process_time() - started
    opened = lance.dataset(place)
    size = (_bytes(folder) - before) / len(vectors)
    return {"cpu": cpu, "bytes": size, "asked": {}}, lambda query, wanted: _nearest(opened, query, wanted)


def _nearest(dataset: Any, query: Vectors, wanted: str | None) -> list[int]:
    nearest = {"column": "v", "q": query, "k": ROWS, "nprobes": PROBES, "refine_factor": REFINE}
    found = dataset.to_table(columns=["id", "_distance"], nearest=nearest, filter=wanted, prefilter=wanted is not None)
    rows: list[int] = found.column("id").to_pylist()
    return rows


def _faiss(vectors: Vectors, metric: str) -> Built:
    import faiss

    is_cosine, size = metric == "cosine", vectors.shape[1]
    if is_cosine:
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    started, kind = time.process_time(), faiss.METRIC_INNER_PRODUCT if is_cosine else faiss.METRIC_L2
    coarse = faiss.IndexFlatIP(size) if is_cosine else faiss.IndexFlatL2(size)
    index = faiss.IndexIVFFlat(coarse, size, max(1, round(math.sqrt(len(vectors)))), kind)
    index.train(vectors)
    index.add(vectors)
    index.nprobe = PROBES
    cpu = time.process_time() - started

    def asked(query: Vectors, _: str | None) -> list[int]:
        found: list[int] = index.search(query[None, :], ROWS)[1][0].tolist()
        return found

    return {"cpu": cpu, "bytes": 4 * size + 8, "asked": {}}, asked


def _bytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


if __name__ == "__main__":
    main(*sys.argv[1:])
