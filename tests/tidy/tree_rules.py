"""House rules of every text file in the tree: what no file may say, and links that must lead somewhere."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.tidy.finding import Finding, line_of

SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules"})
TEXT_SUFFIXES = frozenset(
    {
        "",
        ".cfg",
        ".ini",
        ".json",
        ".lock",
        ".lua",
        ".md",
        ".py",
        ".sh",
        ".toml",
        ".txt",
        ".yaml",
        ".yml",
    }
)
# Spelt in two halves: this file is in the tree too.
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.:/~-])/(?:work|root|home|Users|tmp|opt|mnt)/[A-Za-z0-9_.$-]+")
MARKDOWN_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
# The protocol's name and the wheel's inner folder look like paths and are none of this tree.
NAMED_PATH = re.compile(r"`(?!qim/1`|qim/lua`)((?:bench|chaos|docs|lua|qim|tests)/[\w./-]*)`")
CITED_PAGE = re.compile(r"\b([a-z][a-z_-]*)\.md\b(?:,? *§ *(\d+(?:\.\d+)?))?")
MAKE_CALL = re.compile(r"`make ([a-z]+)")


def project_files(root: Path) -> list[str]:
    """Text files that git tracks or would track; outside a checkout, all that are not hidden."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            check=True,
            capture_output=True,
        ).stdout.decode()
        names = [name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [
            file.relative_to(root).as_posix()
            for file in root.rglob("*")
            if not any(
                part.startswith(".") or part in SKIPPED_FOLDERS
                for part in file.relative_to(root).parts
            )
        ]
    return sorted(
        name for name in names if Path(name).suffix in TEXT_SUFFIXES and (root / name).is_file()
    )


def unfinished(path: str, source: str, root: Path) -> Iterator[Finding]:
    for match in UNFINISHED.finditer(source):
        text = f"{match[0]}: finish it, or file an issue that says what is missing"
        yield Finding(path, line_of(source, match), "unfinished", text)


def machine_path(path: str, source: str, root: Path) -> Iterator[Finding]:
    for match in MACHINE_PATH.finditer(source):
        text = f"{match[0]} exists on somebody's machine only"
        yield Finding(path, line_of(source, match), "machine_path", text)


def dead_link(path: str, source: str, root: Path) -> Iterator[Finding]:
    """A relative link of a page leads to a file, and its fragment to a heading there."""
    if not path.endswith(".md"):
        return
    for match in MARKDOWN_LINK.finditer(source):
        target, _, fragment = match[1].partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (root / path).parent / target if target else root / path
        if not file.exists():
            yield Finding(path, line_of(source, match), "dead_link", f"{match[1]}: no such file")
        elif (
            fragment and file.suffix == ".md" and fragment not in _anchors(file.read_text("utf-8"))
        ):
            yield Finding(path, line_of(source, match), "dead_link", f"{match[1]}: no such heading")


def dead_path(path: str, source: str, root: Path) -> Iterator[Finding]:
    """A file or folder that a page names in code type is there."""
    if not path.endswith(".md") or path == "CHANGELOG.md":
        return
    for match in NAMED_PATH.finditer(source):
        if not (root / match[1]).exists():
            yield Finding(path, line_of(source, match), "dead_path", f"{match[1]}: no such file")


def dead_citation(path: str, source: str, root: Path) -> Iterator[Finding]:
    """Sources cite pages of docs/ by name, and numbered sections by number: both are there."""
    if not path.startswith(("qim/", "lua/")):
        return
    for match in CITED_PAGE.finditer(source):
        page = root / "docs" / f"{match[1]}.md"
        if not page.exists():
            text = f"{match[0]}: docs/ has no such page"
            yield Finding(path, line_of(source, match), "dead_citation", text)
        elif match[2] and not re.search(
            rf"^#+ {re.escape(match[2])}\b", page.read_text("utf-8"), re.MULTILINE
        ):
            text = f"{match[0]}: the page has no section {match[2]}"
            yield Finding(path, line_of(source, match), "dead_citation", text)


def _anchors(page: str) -> set[str]:
    """Heading anchors as the usual forges make them: lower case, punctuation gone, blanks to dashes."""
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        for heading in re.findall(r"^#{1,6} +(.+)$", page, re.MULTILINE)
    }


def unknown_target(path: str, source: str, root: Path) -> Iterator[Finding]:
    """A page that says `make something` names a target of the Makefile."""
    if not path.endswith(".md"):
        return
    targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text("utf-8"), re.MULTILINE))
    for match in MAKE_CALL.finditer(source):
        if match[1] not in targets:
            text = f"make {match[1]}: the Makefile has no such target"
            yield Finding(path, line_of(source, match), "unknown_target", text)


Rule = Callable[[str, str, Path], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    unfinished,
    machine_path,
    dead_link,
    dead_path,
    dead_citation,
    unknown_target,
)


def judge(path: str, source: str, root: Path) -> list[Finding]:
    """Every finding of every rule in one file of the tree at `root`."""
    return sorted({finding for rule in RULES for finding in rule(path, source, root)})
