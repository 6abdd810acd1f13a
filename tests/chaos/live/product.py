"""Tidemark as a user runs it, for the test of live operation (the trial).

The processes are `tidemark ui` and its child processes, and the test can kill each of them.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Any, Self

REPOSITORY = Path(__file__).resolve().parents[3]
CODE, DAEMON, WEBSERVER = "api grpc", "dagster._daemon", "pipelines.processes.webserver"
"""Each text occurs in the command line of one kind of Dagster process."""

_LOCATION = {"repositoryName": "__repository__", "repositoryLocationName": "tidemark"}
_INSTIGATORS = """{ repositoriesOrError { ... on RepositoryConnection { nodes {
    sensors { name sensorState { status } } schedules { name scheduleState { status } } } } } }"""
_START = {
    "sensors": "mutation($selector: SensorSelector!) { startSensor(sensorSelector: $selector) { __typename } }",
    "schedules": "mutation($selector: ScheduleSelector!) { startSchedule(scheduleSelector: $selector) { __typename } }",
}
_NAME = {"sensors": "sensorName", "schedules": "scheduleName"}
_STATE = {"sensors": "sensorState", "schedules": "scheduleState"}


@dataclass(frozen=True, slots=True)
class Process:
    """A process, identified by its ID and start time, with its command line."""

    pid: int
    parent: int
    command: str
    started: str


def processes() -> dict[int, Process]:
    """Return all processes of this machine that have not ended, by ID."""
    columns = ["-o", "pid=,ppid=,stat=,lstart=,args="]
    listed = subprocess.run(["ps", "-A", "-ww", *columns], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in listed.splitlines():
        pid, parent, state, *rest = line.split(maxsplit=8)
        if not state.startswith("Z"):
            found[int(pid)] = Process(int(pid), int(parent), rest[-1], " ".join(rest[:-1]))
    return found


def below(root: int, all_of_them: Mapping[int, Process]) -> list[Process]:
    """Return the descendants of a process, parents first."""
    family = [root]
    for one in family:
        family += [each.pid for each in all_of_them.values() if each.parent == one]
    return [all_of_them[each] for each in family[1:]]


@dataclass(slots=True)
class Product:
    """`tidemark ui` in a folder.

    A context manager that ends this program. `left` returns the processes that still exist.
    """

    folder: Path
    port: int
    seen: dict[tuple[int, str], Process] = field(default_factory=dict)
    kills: list[tuple[float, str]] = field(default_factory=list)
    _main: subprocess.Popen[bytes] = field(init=False)
    _log: IO[bytes] = field(init=False)

    def __enter__(self) -> Self:
        """Start `tidemark ui`, and wait until the page and the code server respond."""
        self._log = (self.folder / "ui.log").open("wb")
        self._main = subprocess.Popen(
            [sys.executable, "-m", "pipelines.cli", "ui", "--port", str(self.port)],
            cwd=self.folder,
            env=self.environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        while not self._instigators():
            assert self._main.poll() is None, (self.folder / "ui.log").read_text()
            time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        """End `tidemark ui` as Ctrl-C does."""
        if self._main.poll() is None:
            self.look()
        self._main.terminate()
        self._main.wait()
        self._log.close()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of this process. `PYTHONPATH` refers to this repository."""
        return {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    @property
    def home(self) -> Path:
        """The folder of Dagster's history."""
        return self.folder / ".dagster"

    def tidemark(self, *arguments: str) -> tuple[int, str]:
        """Run a `tidemark` command in the folder. Return the exit code and the output of the command."""
        command = [sys.executable, "-m", "pipelines.cli", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def switch_on(self) -> list[str]:
        """Switch on every schedule and sensor, as a click in the UI does. Return their names."""
        for kind, name in self._instigators():
            selector = {**_LOCATION, _NAME[kind]: name}
            self._ask(_START[kind], {"selector": selector})
        on = self._instigators(is_on=True)
        assert on == self._instigators()
        return [name for _, name in on]

    def look(self) -> Sequence[Process]:
        """Return the running child processes of `tidemark ui`, and add the processes to `seen`."""
        assert self._main.poll() is None, "tidemark ui has ended"
        found = below(self._main.pid, processes())
        self.seen.update({(each.pid, each.started): each for each in found})
        return found

    def kill(self, what: str, random: Random) -> bool:
        """Kill a process of this kind at a random point of its work. Return False if no such process exists.

        A `run` is a process that the code server started. A `job` is a process that works for a run.
        """
        victims = KINDS[what](self.look())
        if not victims:
            return False
        victim = random.choice(victims)
        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
        self.kills.append((time.time(), f"{what}: {victim.command[:90]}"))
        return True

    def left(self) -> list[Process]:
        """Return the processes of the product that were seen and still exist."""
        now = processes()
        return [each for (pid, at), each in self.seen.items() if pid in now and now[pid].started == at]

    def _instigators(self, *, is_on: bool = False) -> list[tuple[str, str]]:
        try:
            nodes = self._ask(_INSTIGATORS, {})["repositoriesOrError"].get("nodes", [])
        except OSError:
            return []
        return [
            (kind, each["name"])
            for node in nodes
            for kind, state in _STATE.items()
            for each in node[kind]
            if not is_on or each[state]["status"] == "RUNNING"
        ]

    def _ask(self, query: str, variables: Mapping[str, object]) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables})
        with closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request("POST", "/graphql", body, {"Content-Type": "application/json"})
            data: dict[str, Any] = json.load(connection.getresponse())["data"]
        return data


def _of(words: str) -> Callable[[Sequence[Process]], list[Process]]:
    return lambda found: [each for each in found if words in each.command]


def _works(found: Sequence[Process]) -> list[Process]:
    """Return the processes that work for runs: children of the code server, without Python's helper processes."""
    servers = {each.pid for each in found if CODE in each.command}
    by_id = {each.pid: each for each in found}
    tops = [each for each in found if each.parent in servers and "resource_tracker" not in each.command]
    return [each for top in tops for each in (top, *below(top.pid, by_id))]


def _runs(found: Sequence[Process]) -> list[Process]:
    servers = {each.pid for each in found if CODE in each.command}
    return [each for each in _works(found) if each.parent in servers]


def _jobs(found: Sequence[Process]) -> list[Process]:
    return [each for each in _works(found) if "-m jobs" in each.command]


KINDS: Mapping[str, Callable[[Sequence[Process]], list[Process]]] = {
    "run": _runs,
    "code": _of(CODE),
    "job": _jobs,
    "daemon": _of(DAEMON),
    "webserver": _of(WEBSERVER),
}
"""The kinds of processes to kill, in the order in which a trial kills them."""
