"""The demo. Dagster runs the whole pipeline on real data, and the tables answer seven questions.

    make demo

Every step materializes the assets that `make ui` shows, in the same Dagster instance. A second run changes no table.
In the second run, each step finds no new work in the storage, and the tables return the same answers as before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from dagster import AssetKey, DagsterInstance, ExecuteInProcessResult, JobDefinition
from rich.console import Console

from assets.checks import check_keys
from assets.launcher import InProcessLauncher
from examples import landing, two_stores
from examples.datasets import planes, words
from examples.look import look
from examples.narrator import Narrator
from examples.producer import RAW_LOG
from jobs.spark.spark import Spark
from pipelines.catalog import build_definitions
from pipelines.instance import open_instance
from pipelines.jobs import CHECK
from pipelines.runs import range_tags
from pipelines.tables import load_tables, read_raw_logs, tables_folder
from storage_core.change.declaration import load, load_raw_log
from storage_core.data.rows.vectors import Floats
from storage_core.table import exists
from storage_core.write.late_rows import read_entries
from tidemark import Table

LOG_TABLE = Path("tables/access_log.yaml")
PLANES_TABLE = Path("tables/planes.yaml")
DEPARTURES_TABLE = Path("tables/departures.yaml")
WORDS_TABLE = Path("tables/words.yaml")
WORDS = 40_000
LOST_AFTER_ROWS = 1_000
PLAIN_WIDTH = 120
JOB_OF: Mapping[str, str] = {
    "ingested": "ingest",
    "distributed": "distribute",
    "merged": "merge",
    "compacted": "compact",
    "index": "catch_up",
    "checkpointed": "checkpoint",
    "collected": "collect",
}
UPKEEP = ("access_log/compacted", "access_log/index_text", "access_log/index_status", "access_log/checkpointed")
QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


class Pipeline:
    """The Dagster jobs of the declared tables, which run sequentially. Jobs with much work share a Spark session."""

    def __init__(self, instance: DagsterInstance, spark: Spark, narrator: Narrator) -> None:
        self._instance = instance
        self._narrator = narrator
        folder = tables_folder()
        declared = load_tables(folder)
        self._declared = {each.declaration.name: each.declaration for each in declared.tables}
        self._definitions = build_definitions(declared, InProcessLauncher(spark), raw_logs=read_raw_logs(folder))

    def run(self, *names: str) -> None:
        """Materialize the assets in the given order.

        A partitioned asset is materialized over all windows in one run.
        """
        for name in names:
            self._narrator.materialized(name, self._materialize(AssetKey(name.split("/"))))

    def check(self, table: str) -> None:
        """Run every check of a table. The job reads all files of the table."""
        checks = set(check_keys(self._declared[table]))
        job = self._definitions.resolve_job_def(CHECK).get_subset(asset_check_selection=checks)
        result = self._execute(job, {})
        evaluations = result.get_asset_check_evaluations()
        passed = sum(evaluation.passed for evaluation in evaluations)
        self._narrator.say(f"{table}: {passed} of {len(evaluations)} checks passed")

    def _materialize(self, key: AssetKey) -> Mapping[str, object]:
        asset = self._definitions.resolve_assets_def(key)
        windows = asset.partitions_def.get_partition_keys() if asset.partitions_def else []
        tags = range_tags(windows[0], windows[-1]) if windows else {}
        job = self._definitions.resolve_job_def(JOB_OF[key.path[1].split("_")[0]])
        result = self._execute(job.get_subset(asset_selection={key}), tags)
        observed = result.get_asset_observation_events()
        # A partition shows its own metrics. For a run of several partitions or without work, an observation shows the
        # metrics.
        if observed:
            shown = observed[-1].asset_observation_data.asset_observation.metadata
        else:
            shown = result.get_asset_materialization_events()[-1].materialization.metadata
        return {name: value.value for name, value in shown.items()}

    def _execute(self, job: JobDefinition, tags: Mapping[str, str]) -> ExecuteInProcessResult:
        return job.execute_in_process(instance=self._instance, run_config=QUIET, tags=dict(tags))


def main() -> int:
    """Run the demo from the root of the repository, and return its exit code."""
    started = time.perf_counter()
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    narrator = Narrator(console)
    with open_instance() as instance, Spark() as spark:
        pipeline = Pipeline(instance, spark, narrator)
        logs = run_access_log(pipeline, narrator)
        aircraft = run_planes(pipeline, narrator)
        run_departures(pipeline, narrator)
        vocabulary = run_words(pipeline, narrator)
        narrator.step("Collect", "Only the collector deletes, and only what no retained version needs.")
        pipeline.run("access_log/collected", "planes/collected", "departures/collected", "words/collected")
        narrator.step(
            "Check", "The invariants, from the files themselves: windows, order, what file and log say, coverage."
        )
        pipeline.check("access_log")
        pipeline.check("planes")
    ask(logs, aircraft, vocabulary, narrator)
    look(narrator)
    console.print(f"\nDone in {time.perf_counter() - started:.0f} s. Look around:")
    for line in LOOK_AROUND:
        console.print(f"   {line}", highlight=False, markup=False)
    return 0


def run_access_log(pipeline: Pipeline, narrator: Narrator) -> Table:
    """Land four files on time and maintain the table. Then land a late file and maintain the table again."""
    declaration = load(LOG_TABLE)
    place = Path("landing/access_log")

    narrator.step("Land and ingest", "Log lines become sorted splits, one per window and file, in one commit.")
    for path in landing.land_on_time(place):
        narrator.say(f"landed {path} ({path.stat().st_size:,} bytes)")
    pipeline.run("access_log/ingested")

    narrator.step(
        "Compact, index, checkpoint",
        "One split per window. Before the commit, a check shows that the rows are unchanged.",
    )
    pipeline.run(*UPKEEP)

    narrator.step(
        "A late file", "The lines of the file belong to almost every window. Each window gets its lines exactly once."
    )
    path = landing.land_late(place)
    narrator.say(f"landed {path} ({path.stat().st_size:,} bytes)")
    pipeline.run("access_log/ingested")
    table = Table.open(declaration.uri)
    for _, entry in read_entries(table.store):
        for reason, lines in entry.reasons.items():
            narrator.say(f"in quarantine: {lines} of {entry.source}: {reason}")
    narrator.say(f"windows that want compaction now: {len(table.debt())}")
    lagging = table.search("kibana", index="text", limit=1000).num_rows
    pipeline.run(*UPKEEP)
    caught_up = Table.open(declaration.uri).search("kibana", index="text", limit=1000).num_rows
    narrator.say(f"lines found for 'kibana' while the index lagged: {lagging}; after it caught up: {caught_up}")
    return Table.open(declaration.uri)


def run_planes(pipeline: Pipeline, narrator: Narrator) -> Table:
    """Write every aircraft with the region writer, change some aircraft, delete one aircraft, and merge."""
    declaration = load(PLANES_TABLE)
    table = Table.declare(declaration)
    narrator.step(
        "Write keyed rows",
        "Rows are durable in a write-ahead log when put returns. This needs no Spark, broker or lock service.",
    )
    if table.version == 0:
        write_planes(table, narrator)
    else:
        narrator.say("the table already contains the planes")
    narrator.say(f"before the merge, N10156 by key: {table.get('N10156')}")
    pipeline.run("planes/merged", "planes/compacted", "planes/index_manufacturer", "planes/checkpointed")
    return Table.open(declaration.uri)


def run_departures(pipeline: Pipeline, narrator: Narrator) -> None:
    """Let two processes write to two stores. Remove one store while the processes write.

    Distribute the rows, and compare the table with the acknowledged rows.
    """
    declaration = load_raw_log(RAW_LOG)
    lost = Path(declaration.uris[-1])
    narrator.step(
        "Lose a store",
        "Two producers write one raw log to two stores. During the writes, the folder of one store is removed.",
    )
    place = load(DEPARTURES_TABLE).uri
    if two_stores.written() or (exists(place) and Table.open(place).version):
        narrator.say("both producers have already written their rows")
    else:
        before = two_stores.write_and_lose(lost, after=LOST_AFTER_ROWS)
        told = two_stores.acknowledged()
        narrator.say(f"{len(told):,} rows acknowledged; {lost} removed after {before:,}, and no append failed")
        time.sleep(declaration.closed_after / 1_000)
    found = ", ".join(f"{uri}: {count:,}" for uri, count in two_stores.chunks(declaration).items())
    narrator.say(f"chunks in each store: {found}")
    pipeline.run("departures/distributed")
    narrator.say(two_stores.verdict(Table.open(place), two_stores.acknowledged()))


def run_words(pipeline: Pipeline, narrator: Narrator) -> Table:
    """Append words with their embeddings, index them, and measure the recall of vector searches."""
    declaration = load(WORDS_TABLE)
    table = Table.declare(declaration)
    narrator.step(
        "Index vectors", "Codes of 2 bits per number find candidates. The vectors of the table rank the candidates."
    )
    if table.version == 0:
        table.append(words(WORDS))
    pipeline.run("words/index_meaning", "words/index_spelling")
    table = Table.open(declaration.uri)
    measured = table.recall("meaning", queries=20)
    narrator.say(
        f"the index finds {measured.recall:.1%} of the {measured.k} nearest words, on average "
        f"over {measured.queries} searches"
    )
    return table


def write_planes(table: Table, narrator: Narrator) -> None:
    """Write every row, patch one field of the aircraft of Embraer, and delete one aircraft."""
    rows = planes()
    started = time.perf_counter()
    with table.writer() as writer:
        writer.put(rows)
        writer.flush()
        embraers = [row["tailnum"] for row in rows.to_pylist() if row["manufacturer"] == "EMBRAER"]
        writer.patch([{"tailnum": tailnum, "engine": "Turbo-fan (patched)"} for tailnum in embraers])
        writer.delete(["N102UW"])
        writer.flush()
    seconds = time.perf_counter() - started
    narrator.say(f"{rows.num_rows:,} puts, {len(embraers)} patches, 1 delete, acknowledged in {seconds:.2f} s")


def ask(logs: Table, aircraft: Table, vocabulary: Table, narrator: Narrator) -> None:
    """Print the answers to the demo's seven questions."""
    narrator.step("Ask", "Every answer is exact for one snapshot, however far the upkeep lags.")
    query = (
        "select date_trunc('hour', timestamp) as hour, count(*) as lines, count(*) filter (status >= 400) as errors "
        "from t group by hour order by errors desc, hour limit 5"
    )
    narrator.answer("Which hours had the most errors?", f"table.sql({query!r})", logs.sql(query).to_pylist())

    found = logs.search("kibana dashboard", index="text", limit=3).select(["timestamp", "request", "score"])
    narrator.answer(
        "Who asked for Kibana dashboards?", "table.search('kibana dashboard', index='text')", found.to_pylist()
    )

    rows = [_plane(key, aircraft.get(key)) for key in ("N10156", "N102UW")]
    narrator.answer("What is N10156, and is N102UW gone?", "table.get('N10156')", rows)

    king, man, woman = (meaning(vocabulary, word) for word in ("king", "man", "woman"))
    near = vocabulary.search(vector=king - man + woman, filter="word <> 'king'", columns=["word"], limit=3)
    narrator.answer(
        "Who is to a woman what a king is to a man?",
        "table.search(vector=king - man + woman, filter=\"word <> 'king'\")",
        near.to_pylist(),
    )

    both = vocabulary.search(
        "water", vector=meaning(vocabulary, "ocean"), index=["spelling", "meaning"], columns=["word"], limit=5
    )
    narrator.answer(
        "Which words are spelled like 'water' and mean something like 'ocean'?",
        "table.search('water', vector=ocean, index=['spelling', 'meaning'])",
        both.select(["word", "score", "spelling_rank", "meaning_rank"]).to_pylist(),
    )

    narrator.answer("Was anything lost by compaction?", "Table.open(uri, at=version)", time_travel(logs))

    narrow = "select * from t where timestamp >= '2015-05-18 10:00:00+00' and timestamp < '2015-05-18 11:00:00+00'"
    plan = logs.explain(narrow)
    steps: list[dict[str, object]] = [
        {"step": f"left out by {step.name}", "splits": step.splits, "bytes": step.bytes} for step in plan.steps
    ]
    steps.append({"step": "read", "splits": len(plan.splits), "bytes": plan.read_bytes})
    narrator.answer("How much of the table does a query for one hour read?", f"table.explain({narrow!r})", steps)


def meaning(vocabulary: Table, word: str) -> Floats:
    """Return the embedding of a word."""
    (found,) = vocabulary.scan(["meaning"], filter=f"word = '{word}'").to_arrow().column("meaning").to_pylist()
    return np.array(found, np.float32)


def _plane(key: str, row: Mapping[str, object] | None) -> dict[str, object]:
    shown = ("manufacturer", "model", "year", "seats", "engine")
    return {"tailnum": key, **{name: row[name] if row else "(deleted)" for name in shown}}


def time_travel(logs: Table) -> list[dict[str, object]]:
    """Return counts of the table at three times: before its last compaction, after this compaction, and now."""
    compaction = next(entry.version for entry in logs.history() if entry.operation == "COMPACT")
    rows: list[dict[str, object]] = []
    for name, version in (("before", compaction - 1), ("after", compaction), ("now", logs.version)):
        then = Table.open(logs.uri, at=version)
        count = then.sql("select count(*) as n, count(distinct client) as clients from t").to_pylist()[0]
        rows.append({"compaction": name, "version": version, "splits": len(then.snapshot.splits), **count})
    return rows


LOOK_AROUND = (
    "make ui                                        the Dagster UI: every run above, its metrics and checks",
    "report.html                                    splits per window, cost and history of every table",
    ".venv/bin/tidemark describe access_log         windows, indexes, regions of a table",
    ".venv/bin/tidemark history access_log          every commit",
    ".venv/bin/tidemark search access_log 'request:logstash' --index text",
    ".venv/bin/tidemark sql planes 'select manufacturer, count(*) from t group by 1 order by 2 desc limit 5'",
)


if __name__ == "__main__":
    sys.exit(main())
