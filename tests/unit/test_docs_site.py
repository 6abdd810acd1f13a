"""The documentation site: its pages, the links between them, and the pages that are generated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import tidemark
from benchmarks.results_page import PAGE, Row, find, metrics, page
from pipelines.cli import build
from scripts import reference_pages
from scripts.docs_assets import loaded_by
from scripts.docs_site import OUTSIDE, anchor, with_links_of_the_site

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("storage_core", "jobs", "assets", "pipelines", "tidemark")


class _Settings(yaml.SafeLoader):
    """Reads `mkdocs.yml` without loading the functions that it names."""


_Settings.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda _loader, suffix, _node: suffix)


def _navigation(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [path for each in (entry.values() if isinstance(entry, dict) else entry) for path in _navigation(each)]


NAVIGATION = _navigation(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Settings)["nav"])  # noqa: S506
GENERATED = {f"reference/{name}": text for name, text in reference_pages.pages().items()}


def test_the_navigation_lists_every_page_once() -> None:
    docs = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    decisions = {each for each in docs if each.startswith("decisions/")} - {"decisions/README.md"}
    assert sorted(NAVIGATION) == sorted({*docs, *OUTSIDE.values(), *GENERATED} - decisions)


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "[a](docs/spec.md#3-committing)", "[a](spec.md#3-committing)"),
        ("index.md", "![a](docs/images/report.png)", "![a](images/report.png)"),
        ("guide/1-first-table.md", "[a](../../README.md#install)", "[a](../index.md#install)"),
        ("guide/1-first-table.md", "[a](2-own-data.md)", "[a](2-own-data.md)"),
        ("spec.md", "[a](../storage_core/data/formats/region_manifest.proto)", "a"),
        ("architecture/README.md", "[a](../decisions/)", "[a](../decisions/README.md)"),
        ("spec.md", "[a](https://example.com/b) and [c](#d)", "[a](https://example.com/b) and [c](#d)"),
        ("spec.md", "```\n[a](../README.md)\n```", "```\n[a](../README.md)\n```"),
        ("tasks.md", "| `a\\|b` | c |", "| `a|b` | c |"),
    ],
)
def test_a_link_leads_to_a_page_of_the_site(page: str, link: str, expected: str) -> None:
    assert with_links_of_the_site(link, page) == expected


def test_an_anchor_is_the_same_as_on_code_hosts() -> None:
    assert anchor("10.2 Claim and append", "-") == "102-claim-and-append"
    assert anchor("`a symlink; the store follows none`", "-") == "a-symlink-the-store-follows-none"


@pytest.mark.parametrize(
    ("text", "suffix", "found"),
    [
        ('<script src="https://a.example/b.js"></script>', ".html", ["https://a.example/b.js"]),
        ('<link rel="stylesheet" href="//a.example/b.css">', ".html", ["//a.example/b.css"]),
        ('<p style="background: url(https://a.example/b.png)">', ".html", ["https://a.example/b.png"]),
        ('<a href="https://a.example">a</a><link rel="canonical" href="https://a.example">', ".html", []),
        ('<script src="assets/b.js"></script><img src="images/c.png">', ".html", []),
        ('@import "https://a.example/b.css";', ".css", ["https://a.example/b.css"]),
        ("a { background: url(images/b.png) }", ".css", []),
    ],
)
def test_what_a_page_loads_from_another_host_is_found(text: str, suffix: str, found: list[str]) -> None:
    assert loaded_by(text, suffix) == found


def test_the_reference_documents_every_public_name() -> None:
    assert reference_pages.documented() == set(tidemark.__all__)


def test_the_page_of_commands_lists_every_command_with_its_options() -> None:
    group: Any = typer.main.get_command(build())
    page = GENERATED["reference/commands.md"]
    names = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    texts = re.split(r"^### .+$", page, flags=re.MULTILINE)[1:]
    sections = dict(zip(names, texts, strict=True))
    assert sorted(sections) == sorted(group.commands)
    panels = dict.fromkeys(command.rich_help_panel for command in group.commands.values())
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == [*panels]
    assert len(panels) > 1
    for name, command in group.commands.items():
        options = [each for parameter in command.params if not parameter.hidden for each in parameter.opts]
        assert [each for each in options if each.startswith("--") and f"`{each}`" not in sections[name]] == [], name


def test_the_page_of_configuration_lists_every_variable_of_the_environment() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for top in PRODUCT for path in (ROOT / top).rglob("*.py")]
    read = {name for text in sources for name in re.findall(r'"(TIDEMARK_[A-Z0-9_]+)"', text)}
    prefixes = {"TIDEMARK_S3", "TIDEMARK_CACHE"}
    assert len(read - prefixes) > 15
    assert set(re.findall(r"`(TIDEMARK_[A-Z0-9_]+)`", page)) == read - prefixes


# For each operation in the README table: the metric of the benchmark, and the first peer in README.
MEASURED = {
    "open a table of 1,000,000 files, load all entries": (
        "log_at_scale",
        "open 1,000,000 files and look at all, statistics too",
        "delta-rs",
    ),
    "durable `put` of 1,000 rows of 32 bytes": (
        "ingestion",
        "durable append of 1,000 rows, p50, to a deltalake append",
        "deltalake append",
    ),
    "upsert 1,000,000 rows into 1,000,000 rows, keyed table": (
        "ingestion",
        "distribution and merging, 1,000,000 upserts into 1,000,000 keys, to a Delta MERGE on Spark",
        "Delta MERGE on Spark",
    ),
    "delete 1 % of 10,000,000 rows, append table": (
        "deletes",
        "delete of 1 % of 10,000,000 rows, beside delta-rs",
        "delta-rs",
    ),
    "`select count(*)`, 366 files, S3 test server, cold": (
        "remote_reads",
        "days, 366 splits, count, cold",
        "DataFusion",
    ),
    "read 3 of 6 columns, 16,000,000 rows, Spark": (
        "spark_source",
        "whole read of 3 of 6 columns, 16,000,000 rows, 8 splits",
        "Spark's Parquet reader",
    ),
}


@pytest.mark.parametrize("operation", MEASURED)
def test_a_number_of_the_readme_is_that_of_the_benchmark(operation: str) -> None:
    benchmark, metric, peer = MEASURED[operation]
    _, ratio, _ = find(Row(operation, benchmark, metric, peer))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {re.escape(operation)} \| .+ \| ([\d.,]+) × ", readme, re.MULTILINE)
    assert row
    assert float(row[1].replace(",", "")) == pytest.approx(ratio, rel=0.05)


def test_the_page_of_results_is_made_from_the_stored_metrics() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_a_row_of_the_page_needs_a_measured_metric() -> None:
    with pytest.raises(KeyError, match="not measured"):
        find(Row("a renamed metric", "startup", "tidemark sql, renamed", "0.7 s"))


def test_the_peer_of_a_row_can_be_another_metric() -> None:
    own, theirs = "search of 200,000 lines, tide, 10 rows", "search of 200,000 lines, tide, 10 rows, Lance"
    _, ratio, _ = find(Row("a word", "reads", own, "Lance", theirs))
    of_lance = next(each for each in metrics("reads") if each.name == theirs)
    assert of_lance.ratio
    assert ratio == pytest.approx(1 / of_lance.ratio)
