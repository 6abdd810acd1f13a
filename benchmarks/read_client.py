"""The cost of a read from S3 with our client, boto3 and obstore. The clients send the same requests in turns.

- "Answers from memory": the server does almost no work, so the benchmark measures the clients.
- "S3 server of the tests": this server handles one request at a time. This S3 server therefore limits the speed of all
  clients.
- "20 ms later": the same S3 server, with a proxy that delays each request.

Each client has one connection pool and does not retry requests. The benchmark also copies the bytes that obstore
returns, because our client always copies the bytes that it returns. Separate processes measure the cost of a whole
program that reads one object, including imports.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import obstore
from botocore.config import Config
from obstore.store import S3Store as RustStore

from benchmarks.metrics import Metric, command, median, seconds
from benchmarks.read_servers import ENVIRONMENT, OBJECT, REGION, SMALL_BYTES, Place, s3_servers, serving
from storage_core.store.contract import IfAbsent
from storage_core.store.resolve import open_store

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("boto3", "obstore")
LITTLE, MUCH = 64 * 2**10, 8 * 2**20


@dataclass(frozen=True, slots=True)
class Client:
    """Reads whole objects and ranges as bytes."""

    get: Callable[[str], bytes]
    get_range: Callable[[str, int, int], bytes]


@dataclass(frozen=True, slots=True)
class Work:
    """Requests of one kind that concurrent threads send: whole small objects, or ranges of `size` bytes."""

    name: str
    requests: int
    threads: int = 1
    size: int | None = None

    def run(self, client: Client) -> None:
        """Send all requests, and check the number of bytes."""
        if self.threads == 1:
            found = [self._one(client, number) for number in range(self.requests)]
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                found = list(pool.map(lambda number: self._one(client, number), range(self.requests)))
        if set(found) != {self.size or SMALL_BYTES}:
            raise AssertionError(found)

    def _one(self, client: Client, number: int) -> int:
        if self.size is None:
            return len(client.get("small"))
        start = number * self.size % len(OBJECT)
        return len(client.get_range("large", start, start + self.size))


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield requests per second, processor time per request, and the cost of a program's first read."""
    os.environ.update(ENVIRONMENT)
    share, runs = (0.02, 1) if small else (1, 5)
    with serving("memory") as memory, s3_servers() as servers:
        tested, delayed = (Place(servers.bucket, "x", each) for each in (servers.endpoint, servers.slow))
        store = open_store(tested.uri)
        store.put("small", OBJECT[:SMALL_BYTES], IfAbsent())
        store.put("large", OBJECT[:MUCH], IfAbsent())
        fast = (
            Work("GET of 1 KiB", 1000),
            Work("GET of 1 KiB, 16 threads", 2000, 16),
            Work("GET of 1 KiB, 32 threads", 2000, 32),
            Work("range of 64 KiB", 500, 1, LITTLE),
            Work("range of 64 KiB of one object, 16 threads", 1000, 16, LITTLE),
            Work("range of 8 MiB", 8, 1, MUCH),
            Work("range of 8 MiB, 16 threads", 32, 16, MUCH),
        )
        few = (
            Work("GET of 1 KiB", 50),
            Work("GET of 1 KiB, 16 threads", 200, 16),
            Work("range of 64 KiB of one object, 16 threads", 100, 16, LITTLE),
        )
        in_memory = Place("bucket", "x", memory)
        yield from _compared("answers from memory", in_memory, [_fewer(each, share) for each in fast], runs)
        for label, place in (("S3 server of the tests", tested), ("20 ms later", delayed)):
            yield from _compared(label, place, [_fewer(each, share) for each in few], runs)
        yield from _first_reads(tested.uri, runs)


def _fewer(work: Work, share: float) -> Work:
    return Work(work.name, max(int(work.requests * share), 1), work.threads, work.size)


def _clients(place: Place) -> Mapping[str, Client]:
    bucket, endpoint = place.bucket, place.endpoint
    ours = open_store(place.uri)
    config = Config(max_pool_connections=64, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    theirs: Any = boto3.session.Session().client("s3", endpoint_url=endpoint, region_name=REGION, config=config)
    rust = RustStore(
        bucket,
        prefix=place.name,
        endpoint=endpoint,
        region=REGION,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )

    def through_boto3(key: str, **more: str) -> bytes:
        return bytes(theirs.get_object(Bucket=bucket, Key=f"{place.name}/{key}", **more)["Body"].read())

    return {
        "ours": Client(lambda key: ours.get(key).data, ours.get_range),
        "boto3": Client(through_boto3, lambda key, start, end: through_boto3(key, Range=f"bytes={start}-{end - 1}")),
        "obstore": Client(
            lambda key: bytes(obstore.get(rust, key).bytes()),
            lambda key, start, end: bytes(obstore.get_range(rust, key, start=start, end=end)),
        ),
    }


def _compared(label: str, place: Place, works: Sequence[Work], runs: int) -> Iterator[Metric]:
    clients = _clients(place)
    for work in works:
        found: dict[str, list[Cost]] = {name: [] for name in clients}
        for turn in range(runs + 1):  # the first turn opens connections, and does not count
            for name, client in clients.items():
                cost = _cost(partial(work.run, client))
                if turn:
                    found[name].append(cost)
        rates = {name: work.requests / median([each.wall for each in costs]) for name, costs in found.items()}
        used = {name: median([each.processor for each in costs]) / work.requests for name, costs in found.items()}
        for peer in PEERS:
            yield Metric(
                name=f"{label}, {work.name}, beside {peer}",
                value=rates["ours"],
                unit="1/s",
                against=peer,
                ratio=rates["ours"] / rates[peer],
            )
            yield Metric(
                name=f"{label}, {work.name}, processor, beside {peer}",
                value=1e6 * used["ours"],
                unit="µs",
                against=peer,
                ratio=used[peer] / used["ours"],
            )


class Cost(NamedTuple):
    """The wall-clock seconds, the processor seconds and the peak memory in MiB of a piece of work."""

    wall: float
    processor: float
    memory: float = 0.0


def _cost(work: Callable[[], object], who: int = resource.RUSAGE_SELF) -> Cost:
    """Return the cost in this process, or in its ended child processes.

    The server processes have not ended, so their cost is not included.
    """
    before = resource.getrusage(who)
    wall = seconds(work)
    after = resource.getrusage(who)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


_OURS = """
import sys
from storage_core.store.resolve import open_store
assert open_store(sys.argv[1]).get("small").data
"""
_BOTO3 = """
import sys
from urllib.parse import parse_qs, urlsplit
from boto3.session import Session
place = urlsplit(sys.argv[1])
client = Session().client("s3", endpoint_url=parse_qs(place.query)["endpoint"][0], region_name="eu-central-1")
assert client.get_object(Bucket=place.netloc, Key="x/small")["Body"].read()
"""
_OBSTORE = """
import sys
from urllib.parse import parse_qs, urlsplit
import obstore
from obstore.store import S3Store
place = urlsplit(sys.argv[1])
store = S3Store(place.netloc, prefix="x", endpoint=parse_qs(place.query)["endpoint"][0], region="eu-central-1",
    client_options={"allow_http": True})
assert bytes(obstore.get(store, "small").bytes())
"""
_PEAK = """
import re
print(int(re.search(r"VmHWM:\\s+([0-9]+)", open("/proc/self/status").read())[1]) / 1024)
"""


def _first_reads(uri: str, runs: int) -> Iterator[Metric]:
    programs = {"ours": _OURS, "boto3": _BOTO3, "obstore": _OBSTORE, "bare Python": ""}
    found: dict[str, list[Cost]] = {name: [] for name in programs}
    for turn in range(runs + 1):
        for name, program in programs.items():
            cost = _cost_of_program(program, uri)
            if turn:
                found[name].append(cost)
    medians = {name: [median(column) for column in zip(*costs, strict=True)] for name, costs in found.items()}
    bare = medians.pop("bare Python")
    over = {
        name: [max(mine - less, 1e-3) for mine, less in zip(each, bare, strict=True)] for name, each in medians.items()
    }
    for index, (kind, unit) in enumerate((("wall", "s"), ("processor", "s"), ("memory", "MiB"))):
        for peer in PEERS:
            yield Metric(
                name=f"first read of a program over bare Python, {kind}, beside {peer}",
                value=over["ours"][index],
                unit=unit,
                against=peer,
                ratio=over[peer][index] / over["ours"][index],
            )


def _cost_of_program(program: str, uri: str) -> Cost:
    said: list[str] = []

    def run() -> None:
        line = [sys.executable, "-c", program + _PEAK, uri]
        said.append(subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout)

    return _cost(run, resource.RUSAGE_CHILDREN)._replace(memory=float(said[-1]))


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
