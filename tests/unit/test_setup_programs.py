"""`make setup` finds a new enough Java. Its Java launcher drops the arguments about a missing module."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.find_java import LAUNCHER, SENTENCE, usable_home


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def _java(folder: Path, version: str) -> Path:
    """Write a fake `java` program that prints this version, and `folder` as its home."""
    lines = [f"    java.home = {folder}", f"    java.specification.version = {version}"]
    return _program(folder / "bin" / "java", "#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in lines))


@pytest.mark.parametrize("version", ["17", "21", "25"])
def test_a_java_that_is_new_enough_tells_its_home(tmp_path: Path, version: str) -> None:
    home = tmp_path / "a java with spaces"
    assert usable_home(_java(home, version)) == home


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_is_not_usable(tmp_path: Path, version: str) -> None:
    assert usable_home(_java(tmp_path, version)) is None


def test_a_missing_or_broken_java_is_not_usable(tmp_path: Path) -> None:
    assert usable_home(tmp_path / "nowhere" / "java") is None
    assert usable_home(_program(tmp_path / "java", "#!/bin/sh\nexit 1\n")) is None


def test_without_java_the_sentence_says_what_is_missing_and_what_to_do() -> None:
    assert "needs Java 17 or newer" in SENTENCE
    assert "set JAVA_HOME" in SENTENCE


def test_the_private_launcher_drops_the_missing_module_and_keeps_every_other_argument(tmp_path: Path) -> None:
    _program(tmp_path / "bin" / "java-runtime", "#!/bin/sh\nprintf '[%s]' \"$@\"\n")
    launcher = _program(tmp_path / "bin" / "java", LAUNCHER)
    given = ["-cp", "a b:c*", "--add-modules=jdk.incubator.vector", "", "--add-opens=x", "$HOME"]
    shown = subprocess.run([str(launcher), *given], check=True, capture_output=True, text=True).stdout
    assert shown == "[-cp][a b:c*][][--add-opens=x][$HOME]"
