"""The standard error of Java reaches the user, except for the JDK's warnings."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import subprocess, sys, threading
from jobs.spark.session import without_warnings
said = "import sys; sys.stderr.write(sys.argv[1]); sys.stderr.flush(); sys.stdin.read()"
with without_warnings():
    java = subprocess.Popen([sys.executable, "-c", said, sys.argv[1]], stdin=subprocess.PIPE)
print("ours", file=sys.stderr)
java.communicate()
for each in threading.enumerate():
    if each.name == "jvm-messages":
        each.join()
"""


def _seen(said: str) -> str:
    command = [sys.executable, "-c", PROGRAM, said]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stderr


def test_warnings_are_left_out_and_all_else_passes() -> None:
    said = "WARNING: Using incubator modules: jdk.incubator.vector\n12:00:00 ERROR spark X: WARNING: lost\nWARNING: b\n"
    assert sorted(_seen(said).splitlines()) == ["12:00:00 ERROR spark X: WARNING: lost", "ours"]


def test_a_bar_without_an_end_of_line_passes_too() -> None:
    assert "[Stage 0:>  (0 + 2) / 6]" in _seen("\r[Stage 0:>  (0 + 2) / 6]")
