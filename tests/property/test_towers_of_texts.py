"""Functions of a query need only a bounded amount of memory per row, for any nesting of functions.

Nested calls ("towers") use every function of the engine that a query may call. The nested calls also use
concatenations, casts, list functions and subqueries. The result of each inner call is an argument of the call that
encloses the inner call. A separate process runs the query. This process and its query processes must not take more
memory than a query is allowed.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from storage_core.engine.sandbox.process import BESIDE_BYTES
from storage_core.engine.statement import SCALARS
from tests.support.scale import scaled

MEMORY = 64 * 2**20
PROGRAM = 256 * 2**20
"""The memory of a process that has loaded its libraries and has run no query."""
ASKING = """
import json, resource, sys
import pyarrow as pa
from storage_core.engine.sandbox.process import end_all
from storage_core.base.errors import InvalidInput, Unavailable
from tidemark import QueryLimits, Table

def most_held():
    (line,) = [each for each in open("/proc/self/status") if each.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

table = Table.create(sys.argv[1], pa.schema([("s", pa.string())]))
table.append([{"s": ("a' b, €" + chr(92) + chr(34) + chr(1)) * 5}])
limits = QueryLimits(seconds=5, memory_bytes=int(sys.argv[2]))
table.sql("select s from t")
before = most_held()
for text in json.load(sys.stdin):
    try:
        table.sql(text, limits=limits)
        kind = "answer"
    except (InvalidInput, Unavailable) as error:
        kind = error.kind
    end_all()  # the system counts the memory of a process that has ended
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps([text, kind, most_held() - before, most]))
"""
LAYERS = (
    "s || s",
    "s || s || s || s || s || s || s || s",
    "concat(s, s, s, s)",
    "concat_ws(s, s, s, s)",
    "concat(*columns(*))",
    "to_json(s)::varchar",
    "json_quote(s)::varchar",
    "json_array(s, s)::varchar",
    "json_object(s, s)::varchar",
    "{'a': s, 'b': s}::varchar",
    "[s, s, s]::varchar",
    "[[s], [s]]::varchar",
    "split(s, '')::varchar",
    "array_to_string([s, s], 'and')",
    "array_to_string(split(s, ''), '-----')",
    "list_transform([s, s], lambda x: x || x)::varchar",
    "list_transform(split(s, ''), lambda x: s)::varchar",
    "list_aggregate([s, s, s], 'string_agg', '-')",
    "encode(s)::varchar",
    "hex(s)",
    "base64(encode(s))",
    "bin(s)",
    "url_encode(s)",
    "regexp_escape(s)",
    "repeat(s, 9)",
    "s.repeat(9)",
    "lpad(s, 1000, s)",
    "list_resize([s], 20, s)::varchar",
    "replace(s, 'a', 'aaaaaaaa')",
    r"regexp_replace(s, '.', '\0\0\0', 'g')",
    "translate(s, 'abc', '€€€')",
    "format('{}{}{}', s, s, s)",
    "printf('%s%s', s, s)",
    "(select string_agg(s, '') from t)",
    "(select max(x.s || s) from t x)",
)


def towers(seed: str) -> Iterator[str]:
    """Yield nested calls. Most calls are known to need much memory. The innermost call may be any function."""
    any_of = random.Random(seed)
    calls = [f"{name}({', '.join(['s'] * count)})::varchar" for name in sorted(SCALARS) for count in (1, 2, 3)]
    while True:
        below = "t"
        for height in range(any_of.randint(1, 12)):
            chosen = any_of.choice(calls if height == 0 and any_of.random() < 0.5 else LAYERS)
            below = f"(select {chosen} as s from {below} as t)"
        yield f"select strlen(s) from {below}"


def test_no_tower_takes_more_memory_than_a_question_may(tmp_path: Path) -> None:
    seed = f"towers {scaled(1)}"
    texts = list(itertools.islice(towers(seed), scaled(25)))
    command = [sys.executable, "-c", ASKING, str(tmp_path / "t"), str(MEMORY)]
    requested = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False)
    assert requested.returncode == 0, f"{seed}: {requested.stderr}"
    told = [json.loads(line) for line in requested.stdout.splitlines()]
    assert len(told) == len(texts)
    over = [each for each in told if each[2] > 2 * MEMORY or each[3] > PROGRAM + MEMORY + BESIDE_BYTES]
    assert not over, f"{seed}: {over[0]}"
    assert {"answer", "unavailable"} <= {kind for _, kind, _, _ in told}
