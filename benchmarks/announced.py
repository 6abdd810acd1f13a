"""Ingest of many small files. A queue announces the files.

Each file has one line. 10 % of the messages arrive twice, all messages are out of order, and 1 % of the files is never
announced. The last run of the ingest lists the landing location. The listing finds the files that no message announced.
At the end, each file must be in the table exactly once.

Another process of this machine serves the landing location and its queue. This server generates the content of a file
from its name, and counts the requests. `ANNOUNCED_FILES` in the environment sets the number of files.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, cast
from urllib.parse import parse_qs, quote, unquote, urlsplit
from urllib.request import Request, urlopen

from benchmarks.metrics import Metric, command, peak_mib
from benchmarks.read_servers import ENVIRONMENT, REGION
from storage_core.change.declaration import load
from storage_core.data.steps import Ingest
from storage_core.log.job_run import InProcessExecutor, JobReport, run
from storage_core.write.ingest import announcements
from tidemark import Table

FILES = int(os.environ.get("ANNOUNCED_FILES", "100000"))
SMALL_FILES = 300
NEVER_ANNOUNCED_EVERY = 100
REPEATED_EVERY = 10
PLACE = "landing"
_PAGE_KEYS = 1000
_BUCKET = "announced"


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the requests per file, the memory, and the times of the first and the last run.

    Raises `RuntimeError` if the table does not contain every file exactly once.
    """
    files = SMALL_FILES if small else FILES
    if small:
        announcements.MOST_MESSAGES = 100  # type: ignore[misc]  # several runs with few files
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder, _serving() as server:
        declaration = _declared(Path(folder), server)
        _ingest(declaration)  # the first run lists the location, which is still empty
        server.land(files)
        seconds: list[float] = []
        before = peak_mib()
        while (started := perf_counter()) and _announced(_ingest(declaration))["messages"]:
            seconds.append(perf_counter() - started)
        counts = server.counts()
        table = Table.open(str(Path(folder) / "table"))
        announced = files - files // NEVER_ANNOUNCED_EVERY
        _require_each_once(table, announced)
        yield Metric(name=f"{announced:,} announced files in {len(seconds)} runs", value=sum(seconds), unit="s")
        yield Metric(name="a run, the first", value=seconds[0], unit="s")
        last = seconds[-2] if len(seconds) > 2 else seconds[-1]  # the last run gets fewer messages than other runs
        yield Metric(
            name="a run, the last full one", value=last, unit="s", against="the first", ratio=seconds[0] / last
        )
        yield Metric(name="growth of the memory over all runs", value=max(0.1, peak_mib() - before), unit="MiB")
        for kind, count in sorted(counts.items()):
            yield Metric(name=f"requests per file, {kind}", value=count / announced, unit="requests")
        started = perf_counter()
        _ingest(_declared(Path(folder), server, suffix=".json"))
        _require_each_once(Table.open(table.uri), files)
        name = f"a run that lists, and finds {files - announced:,} more"
        yield Metric(name=name, value=perf_counter() - started, unit="s")
        yield Metric(name="its LISTs", value=server.counts()["list"] - counts.get("list", 0), unit="requests")


def _declared(folder: Path, server: Server, **landing: str) -> Path:
    """Return the declaration. After a change of `landing`, the next run lists the location."""
    uri = f"s3://{_BUCKET}/{PLACE}?endpoint={server.endpoint}&region={REGION}&path_style=true"
    queue = f"{server.endpoint}/123456789012/landed"
    body = {
        "name": "announced",
        "uri": str(folder / "table"),
        "columns": {"at": "timestamp!", "id": "long"},
        "time_column": "at",
        "window": "1h",
        "landing": {"uri": uri, "format": "ndjson", "queue": queue, "list_every": "1000d", **landing},
    }
    path = folder / "announced.yaml"
    path.write_text(json.dumps(body))
    return path


def _ingest(declaration: Path) -> JobReport:
    table = Table.declare(load(str(declaration)))
    return run(Ingest(table_uri=table.uri), InProcessExecutor(table.log), table)


def _announced(report: JobReport) -> Counter[str]:
    found = report.details["announced"]
    return Counter({name: value for name, value in cast("dict[str, Any]", found).items() if isinstance(value, int)})


def _require_each_once(table: Table, files: int) -> None:
    (found,) = table.sql("SELECT count(*) AS rows, count(DISTINCT id) AS ids FROM t").to_pylist()
    if found != {"rows": files, "ids": files}:
        raise RuntimeError(f"the table has {found}, and {files} files landed")


# The server.


@dataclass(frozen=True, slots=True)
class Server:
    """A running server of the landing location and the queue."""

    endpoint: str

    def land(self, files: int) -> None:
        """Add this number of files to the landing location, and send their messages."""
        self._call("land", files)

    def counts(self) -> Counter[str]:
        """Return the number of requests of each kind since the files landed."""
        return Counter(self._call("counts", None))

    def _call(self, action: str, argument: int | None) -> Any:
        headers = {"X-Amz-Target": f"Benchmark.{action}"}
        with urlopen(Request(self.endpoint, json.dumps(argument).encode(), headers)) as answer:  # noqa: S310
            return json.load(answer)


@contextmanager
def _serving() -> Iterator[Server]:
    program = [sys.executable, "-m", "benchmarks.announced", "--serve"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Server(next(iter(process.stdout or ())).strip())
        finally:
            process.kill()


def _name(number: int) -> str:
    return f"{PLACE}/2026/{number // _PAGE_KEYS:04} a/{number:07}.json"


def _content(name: str) -> bytes:
    number = int(name[-12:-5])
    return f'{{"at": "2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z", "id": {number}}}\n'.encode()


def _event(number: int) -> str:
    data = _content(_name(number))
    found = {"key": quote(_name(number)), "size": len(data), "eTag": hashlib.md5(data).hexdigest()}  # noqa: S324
    record = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put"}
    return json.dumps({"Records": [{**record, "s3": {"bucket": {"name": _BUCKET}, "object": found}}]})


@dataclass(slots=True)
class _State:
    """The number of files, the files with waiting messages, and the number of requests of each kind."""

    files: int = 0
    waiting: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def answer(self, action: str, body: Any) -> Any:
        """Return the server's answer to a request of the ingest to the queue, or to a request of the benchmark."""
        match action:
            case "land":
                numbers = [each for each in range(body) if each % NEVER_ANNOUNCED_EVERY]
                self.files, self.waiting = body, numbers + numbers[::REPEATED_EVERY]
                random.Random(7).shuffle(self.waiting)
                self.counts.clear()
                return {}
            case "counts":
                return self.counts
            case "ReceiveMessage":
                self.counts["receive"] += 1
                taken = [self.waiting.pop() for _ in range(min(10, len(self.waiting)))]
                return {"Messages": [{"MessageId": str(n), "ReceiptHandle": str(n), "Body": _event(n)} for n in taken]}
            case "DeleteMessageBatch":
                self.counts["delete messages"] += 1
                return {"Successful": [{"Id": each["Id"]} for each in body["Entries"]], "Failed": []}
            case _:
                return {"Attributes": {"ApproximateNumberOfMessages": str(len(self.waiting))}}

    def page(self, query: dict[str, list[str]]) -> bytes:
        """Return a page of the listing."""
        first = int(query.get("continuation-token", ["0"])[0])
        end = min(self.files, first + _PAGE_KEYS)
        parts = ["<ListBucketResult><EncodingType>url</EncodingType>"]
        parts.append(f"<IsTruncated>{'true' if end < self.files else 'false'}</IsTruncated>")
        parts.append(f"<NextContinuationToken>{end}</NextContinuationToken>" if end < self.files else "")
        for number in range(first, end):
            data = _content(_name(number))
            parts.append(
                f"<Contents><Key>{quote(_name(number))}</Key><LastModified>2026-11-22T10:00:00.000Z</LastModified>"
                f"<ETag>&quot;{hashlib.md5(data).hexdigest()}&quot;</ETag><Size>{len(data)}</Size></Contents>"  # noqa: S324
            )
        return "".join([*parts, "</ListBucketResult>"]).encode()


_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_ACTION = re.compile(rb"\r\nx-amz-target: *[A-Za-z]+\.([A-Za-z]+)", re.IGNORECASE)


class _Protocol(asyncio.Protocol):
    def __init__(self, state: _State) -> None:
        self._state = state
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._got += data
        while (end := self._got.find(b"\r\n\r\n")) >= 0:
            head = self._got[:end]
            length = int(found[1]) if (found := _LENGTH.search(head)) else 0
            if len(self._got) < end + 4 + length:
                return
            body, self._got = self._got[end + 4 : end + 4 + length], self._got[end + 4 + length :]
            self._transport.write(self._answer(head, body))

    def _answer(self, head: bytes, body: bytes) -> bytes:
        method, target, _ = head.partition(b"\r\n")[0].decode().split(" ")
        if found := _ACTION.search(head):
            return _reply(json.dumps(self._state.answer(found[1].decode(), json.loads(body))).encode())
        place = urlsplit(target)
        if "list-type" in place.query:
            self._state.counts["list"] += 1
            return _reply(self._state.page(parse_qs(place.query)))
        self._state.counts[method.lower()] += 1
        data = _content(unquote(place.path))
        return _reply(data, hashlib.md5(data).hexdigest(), is_head=method == "HEAD", is_range=b"range:" in head)  # noqa: S324


def _reply(data: bytes, etag: str = "", *, is_head: bool = False, is_range: bool = False) -> bytes:
    lines = ["HTTP/1.1 206 Partial Content" if is_range else "HTTP/1.1 200 OK", f"content-length: {len(data)}"]
    lines.append(f"content-range: bytes 0-{len(data) - 1}/{len(data)}" if is_range else "content-type: text/plain")
    lines += [f'etag: "{etag}"', "last-modified: Sun, 22 Nov 2026 10:00:00 GMT", "date: Sun, 22 Nov 2026 10:00:00 GMT"]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if is_head else data)


async def _serve() -> None:
    state = _State()
    server = await asyncio.get_running_loop().create_server(lambda: _Protocol(state), "127.0.0.1", 0, backlog=128)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        asyncio.run(_serve())
    else:
        sys.exit(command(measure, str(__doc__).partition("\n")[0]))
