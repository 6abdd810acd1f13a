"""Count patterns of hard English in the texts of the tree, and print their locations.

    python -m scripts.plain_english                      counts per 1,000 sentences, by folder
    python -m scripts.plain_english docs storage_core/log --places     every place below these paths

The texts are docstrings, comments, messages in the code, and Markdown pages. Code in backticks and fenced blocks is not
English and does not count.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MOST_WORDS: Final = 25

PATTERNS: Final = {
    "semicolon": re.compile(r";"),
    "opening": re.compile(r"^(?:What|Who|Whoever|Whatever|Whichever|Where|Of|Beside)\b(?!.*\?$)"),
    "is no": re.compile(
        r"\b(?:is|are|was|were) no\b(?! (?:longer|more|later|older|newer|greater|larger|earlier)\b)", re.IGNORECASE
    ),
    "word": re.compile(
        r"\b(?:anew|beside|for ever|by hand of|starv\w+|vouch\w*|foretell\w*|lest|thereof|whatever|however far|"
        r"at hand|owed|side by side)\b",
        re.IGNORECASE,
    ),
    "pronoun": re.compile(r"^(?:It|Its|They|Their|Them|Both)\b"),
}
"""The patterns by name.

The pattern `long` is also counted. A sentence has this pattern if the sentence has more than `MOST_WORDS` words.
"""

LIMITS: Final = {"semicolon": 20.0, "opening": 2.0, "is no": 5.0, "word": 0.0, "pronoun": 5.0, "long": 10.0}
"""The highest allowed counts per 1,000 sentences.

The limits for `semicolon`, `opening` and `is no` are close to the counts for SlateDB, delta-rs and PyIceberg. A
sentence that opens with a pronoun (`pronoun`) takes its noun from another sentence. In the packages of delta-rs, Polars
and Dagster, 3 to 9 of 1,000 sentences open with a pronoun.
"""

_CODE = re.compile(r"``[^`]*``|`[^`]*`")
_LINK = re.compile(r"\]\([^)]*\)|<https?:[^>]*>|https?:\S+")
_SPLIT = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*`]*[A-Z0-9`x])|\n\s*\n")
_BEGINS = re.compile(r"[|#<]|[-*] |\d+\. ")
_MESSAGE = re.compile(r"[\w\"'`(]")
_WORD = re.compile(r"[A-Za-z][\w'’-]*")
_FEWEST_WORDS = 3
_FEWEST_WORDS_OF_CLAUSE = 6


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, with the file and the line where its text begins.

    `is_message` is True for text that the program shows. `is_message` is False for docstrings, comments and pages.
    """

    path: str
    line: int
    text: str
    is_message: bool = False

    @property
    def patterns(self) -> list[str]:
        """The names of the patterns that occur in the sentence."""
        words = len(_WORD.findall(self.text))
        found = [name for name, pattern in PATTERNS.items() if pattern.search(self.text)]
        if words < _FEWEST_WORDS_OF_CLAUSE and "opening" in found:  # a heading, such as "What to do"
            found.remove("opening")
        return found + ["long"] * (words > MOST_WORDS)


def sentences(path: Path, root: Path = ROOT) -> Iterator[Sentence]:
    """Yield the English sentences in a Python file or a Markdown page."""
    name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
    is_code = path.suffix == ".py"
    parts = [(found, False) for found in (_documented(text) if is_code else _of_markdown(text))]
    parts += [(found, True) for found in (_messages(text) if is_code else ())]
    for (line, paragraph), is_message in parts:
        plain = _LINK.sub("]", _CODE.sub("x", paragraph))
        for part in _SPLIT.split(plain):
            sentence = " ".join(part.split()).lstrip("-*>#| ")
            if len(_WORD.findall(sentence)) >= _FEWEST_WORDS:
                yield Sentence(name, line, sentence, is_message)


def _docstrings(nodes: list[ast.AST]) -> list[ast.expr]:
    bodies = [body for node in nodes if isinstance(body := getattr(node, "body", None), list)]
    return [child.value for body in bodies for child in body if isinstance(child, ast.Expr) and _text(child.value)]


def _documented(text: str) -> Iterator[tuple[int, str]]:
    for each in _docstrings(list(ast.walk(ast.parse(text)))):
        yield from _of_markdown(_text(each), each.lineno)
    yield from _comments(text)


def _messages(text: str) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(ast.parse(text)))
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    seen = {id(part) for node in joined for part in ast.walk(node) if part is not node}
    seen |= set(map(id, _docstrings(nodes)))
    for node in nodes:
        if id(node) in seen:
            continue
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(_text(each) or "`x`" for each in node.values)
        elif (found := _text(node)) and " " in found.strip() and _MESSAGE.match(found):
            yield getattr(node, "lineno", 1), found


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _comments(text: str) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("#!", "# noqa", "# type:")):
            continue
        if block and token.start[0] != last + 1:
            yield first, " ".join(block)
            block = []
        first = first if block else token.start[0]
        last = token.start[0]
        block.append(re.sub(r"# (?:noqa|type: ignore).*?(?=#|$)", "", token.string).lstrip("# "))
    if block:
        yield first, " ".join(block)


def _of_markdown(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, list items and table cells. Each text has the line on which it begins."""
    block: list[str] = []
    start, fenced = first, False
    for number, line in enumerate(text.splitlines(), first):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            fenced = not fenced
        is_code = fenced or stripped.startswith(("```", "~~~")) or line.startswith("        ")
        if block and (is_code or not stripped or _BEGINS.match(stripped)):
            yield start, "\n".join(block)
            block = []
        if is_code or not stripped or stripped.startswith("<"):
            continue
        if stripped.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                yield number, cell.strip()
            continue
        start = start if block else number
        block.append(stripped)
    if block:
        yield start, "\n".join(block)


def files(paths: list[str], root: Path = ROOT) -> list[Path]:
    """Return the Python files and pages below these paths that Git tracks. Omit generated code."""
    command = ["git", "ls-files", "-z", "--", *(paths or ["*.py", "*.md"])]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    found = (root / name for name in filter(None, listed.split("\0")) if name.endswith((".py", ".md")))
    return [path for path in found if path.exists() and not path.name.endswith("_pb2.py")]


def main(arguments: list[str]) -> int:
    """Print the counts. With `--places`, print the places. Return 0."""
    paths = [each for each in arguments if not each.startswith("--")]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in files(paths):
        parts = path.relative_to(ROOT).parts
        folder = "/".join(parts[:2] if path.suffix == ".py" or "decisions" in parts else parts)
        for each in sentences(path):
            counts[folder]["all"] += 1
            counts[folder].update(each.patterns)
            if "--places" in arguments and each.patterns:
                print(f"{each.path}:{each.line}: {', '.join(each.patterns)}: {each.text}")
    names = [*PATTERNS, "long"]
    print(f"{'':44} {'sentences':>9} " + " ".join(f"{name:>9}" for name in names) + "   per 1,000")
    for folder, found in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        shares = " ".join(f"{1000 * found[name] / max(found['all'], 1):9.1f}" for name in names)
        print(f"{folder:44} {found['all']:9} {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
