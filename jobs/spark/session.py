"""A Spark session for Tidemark's jobs: of this process, on a cluster, or behind a Spark Connect server (decision 0076).

Where the tasks are elsewhere, their code travels with the session (decision 0062).
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import sysconfig
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jobs.process.stop_signals import handlers_kept
from jobs.spark import code_archive, java_archive
from jobs.spark.code_archive import ROOT
from jobs.spark.java import require_java
from jobs.spark.jvm_messages import without_warnings
from jobs.spark.master import CONNECT
from jobs.spark.reach import connect, require_master
from storage_core.extras import PIPELINE, needs
from storage_core.scratch import scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.localRelationThreshold": "1g",  # above, Spark divides rows among tasks by other rules
}
"""Settings of a session, which a Connect server takes as well."""

PRIVATE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.authenticate": "true",  # of a local master with a random secret that only its Java has
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}
"""Settings of a driver with its tasks in one Java: no other user of the machine has anything deserialized there."""


def active() -> SparkSession | None:
    """Return the session that this process has running, if any."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession  # imported already

    return SparkSession.getActiveSession()


def start(master: str, more: Mapping[str, str] = _NOTHING_MORE) -> SparkSession:
    """Start or join a session for Tidemark's jobs: UTC, no web server, this Python for the workers, and their code.

    With a master in this process everything stays on the loopback. On a cluster the driver is where Spark's own
    settings say (`SPARK_LOCAL_IP`, `spark.driver.host` in `SPARK_CONF_DIR`, else the name of the machine). A Connect
    server has a driver and a Python of its own, and no Java is needed here. The workers of both get `jobs` and
    `storage_core` as a zip. `more` are settings of a driver that this starts. Raises as
    `reach.connect` and `reach.require_master` do, and `Unavailable` without Java or PySpark.
    """
    local = master.startswith("local")
    session = connect(master, SETTINGS) if master.startswith(CONNECT) else _start_driver(master, more, local=local)
    if not local:
        ship_code(session)
    return session


def _start_driver(master: str, more: Mapping[str, str], *, local: bool) -> SparkSession:
    with needs(PIPELINE, "Spark"):
        from pyspark.sql import SparkSession  # half a second that a job with nothing to do does not pay

    require_master(master)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # not each connection that it closes
    _settle_environment(local=local)

    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    settings |= {**PRIVATE, **_java_options(more), "spark.local.dir": str(_local_files(os.getpid()))} if local else {}
    builder = SparkSession.builder.master(master).appName("tidemark")
    with handlers_kept(), without_warnings():
        os.environ.setdefault("SPARK_CONF_DIR", str(java_archive.MESSAGES.parent))
        return builder.config(map={**SETTINGS, **settings, **more}).getOrCreate()


@functools.cache
def _local_files(process: int) -> Path:  # noqa: ARG001  # once per process: its Java keeps to the first folder
    """The folder for what tasks of this process write to disk. The next process removes it where this one is killed."""
    closing = ExitStack()
    atexit.register(closing.close)
    return closing.enter_context(scratch_folder("spark"))


def _java_options(more: Mapping[str, str]) -> dict[str, str]:
    """The options of a Java that starts from the archive, where there is one and nobody else gives any.

    With `more`, the settings of Delta Lake, it does a good part of the work itself, and has its compilers.
    """
    if {"SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"} & os.environ.keys() or not java_archive.mapping_options():
        return {}
    os.environ["SPARK_CONF_DIR"] = str(java_archive.no_settings())
    return {"spark.driver.extraJavaOptions": java_archive.options("" if more else java_archive.QUICK)}


def is_elsewhere(session: SparkSession) -> bool:
    """Return whether the workers of a session may lack this code: on a cluster, and behind a Connect server.

    So may those of a session of this process that was started by somebody else, unless they are told where it is.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        return True
    context: Any = session.sparkContext
    paths = (context._jvm.System.getenv("PYTHONPATH") or "").split(os.pathsep)  # noqa: SLF001  # the workers have it
    return not context.master.startswith("local") or str(ROOT) not in [*paths, sysconfig.get_path("purelib")]


def ship_code(session: SparkSession) -> None:
    """Give the workers of the session this code. Executors fetch it as they start, so the file stays as long as it."""
    closing = ExitStack()
    folder = closing.enter_context(scratch_folder("code"))
    weakref.finalize(session, closing.close)
    session.addArtifacts(str(code_archive.write(folder)), pyfile=True)


def _settle_environment(*, local: bool) -> None:
    """Tell Spark where Java is, which Python its workers are, and to keep to itself; what is set already stays."""
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.update(code_archive.first_on_path(os.environ))
