"""Installs locked packages: with uv where it is there, with a uv brought along where it is not, else with pip.

Run as a program it prints the path of uv, which `make lock` needs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
PRIVATE = ROOT / ".uv"


class CannotInstallError(Exception):
    """The machine lacks something that only its owner can add; the message is one sentence that says what."""


def find_uv() -> Path | None:
    """The uv on PATH, else the private one in `.uv/`, made on the first call; None where neither is possible."""
    on_path = shutil.which("uv")
    if on_path is not None:
        return Path(on_path)
    private = PRIVATE / "bin" / "uv"
    if not private.exists() and not _bring_uv():
        return None
    return private


def _bring_uv() -> bool:
    """Make `.uv/` with the locked uv in it; a half-made one is replaced."""
    _say("bringing uv along in .uv/")
    try:
        make_environment(PRIVATE)
    except CannotInstallError:
        return False
    pip = [str(PRIVATE / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    locked = ["--require-hashes", "-r", str(REQUIREMENTS / "installer.lock")]
    return subprocess.run([*pip, *locked], check=False).returncode == 0


def make_environment(path: Path, uv: Path | None = None) -> None:
    """A fresh virtual environment at `path` for the running Python; what was there is replaced."""
    if path.exists():
        shutil.rmtree(path)
    if uv is not None:
        command = [str(uv), "venv", "--quiet", "--python", sys.executable, str(path)]
        if subprocess.run(command, check=False).returncode == 0:
            return
    made = subprocess.run([sys.executable, "-m", "venv", str(path)], check=False, capture_output=True, text=True)
    if made.returncode != 0:
        shutil.rmtree(path, ignore_errors=True)
        raise CannotInstallError(
            f"{sys.executable} cannot make a virtual environment: install its venv module "
            "(Debian and Ubuntu: the package python3-venv) or uv, then run make again."
        )


def locked_python(name: str) -> Path:
    """The Python that has the packages of `requirements/NAME.lock`, in `.NAME/`; made again when these have changed.

    Raises CannotInstallError.
    """
    folder, lock = ROOT / f".{name}", REQUIREMENTS / f"{name}.lock"
    python, stamp = folder / "bin" / "python", folder / ".stamp"
    if not stamp.exists() or stamp.read_text() != lock.read_text():
        make_environment(folder, find_uv())
        install(python, "--require-hashes", "-r", str(lock))
        stamp.write_text(lock.read_text())
    return python


def install(python: Path, *arguments: str) -> None:
    """Install into the environment of `python`, by uv or else by pip; `arguments` are those both of them understand.

    Raises CannotInstallError when both fail; what they said is on stderr.
    """
    uv = find_uv()
    if uv is not None:
        command = [str(uv), "pip", "install", "--python", str(python), *arguments]
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode == 0:
            return
        _say("uv could not install the packages (its message is above); trying pip, which has its own settings")
    pip = [str(python), "-m", "pip"]
    if subprocess.run([*pip, "--version"], check=False, capture_output=True).returncode != 0:
        subprocess.run([str(python), "-m", "ensurepip"], check=False, stdout=sys.stderr)
    if subprocess.run([*pip, "install", *arguments], check=False, stdout=sys.stderr).returncode != 0:
        raise CannotInstallError(
            "neither uv nor pip could install the packages: see their messages above; without a network, "
            "run make once where there is one."
        )


def _say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr)


def main() -> int:
    """Print the path of uv."""
    uv = find_uv()
    if uv is None:
        _say("there is no uv and it could not be brought along: install uv, then run make again.")
        return 1
    print(uv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
