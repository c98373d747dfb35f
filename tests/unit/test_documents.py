"""The documents hold together: links lead somewhere, paths exist, pages keep to their lengths, and decisions to their
form."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from tests.tools import load_tool

import anabranch.client

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {"ARCHITECTURE.md": (150, 110), "README.md": (130, None)}
"""Lines at most, characters in a line at most."""
ROOMS = ("", "libs/anabranch", "services", "helm/anabranch")
"""Folders in which a path that is short may lie, by the words of the documents that have short ones."""
MADE = ("build/", "data/", ".venv", "logs/", "dist/")
"""Paths that are made, and so exist only where somebody made them."""
SUFFIXES = ("py", "md", "yaml", "yml", "json", "proto", "toml", "lock", "tpl", "in", "binpb", "txt", "Dockerfile")
_FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_BRACES = re.compile(r"\{([^{}]*)\}")
_PATH = re.compile(rf"(?=[^/]*/|[\w.*\-]*\.(?:{'|'.join(SUFFIXES)})$)[\w.*\-/]+/?")


def tracked() -> list[Path]:
    """Every file of the checkout, also one that is not committed yet."""
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=30,
    ).stdout.splitlines()  # fmt: skip
    return [Path(name) for name in found if (ROOT / name).exists()]


FILES = tracked()
PLACES = {str(place) for path in FILES for place in (path, *path.parents)} - {"."}
KNOWN = {place.rsplit("/", 1)[-1] for place in PLACES}
"""Names of files and folders, wherever they lie."""
DOCUMENTS = [path for path in FILES if path.suffix == ".md"]
WITH_PATHS = [
    path
    for path in DOCUMENTS
    if path.parts[0] == "docs" or str(path) in {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"}
]


def text_of(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """A document without its blocks of code."""
    return _FENCE.sub("", text_of(path))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a document's headings, as GitHub and the site make them."""
    seen: Counter[str] = Counter()
    made: set[str] = set()
    for heading in _HEADING.findall(prose(path)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.replace("`", "").lower()).strip().replace(" ", "-")
        made.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(made)


def links(path: Path) -> list[str]:
    """Links of a document that lead to others, or to places in itself."""
    shown = _CODE.sub("", prose(path))
    return [link for link in _LINK.findall(shown) if not re.match(r"[a-z]+:", link)]


def dead(path: Path, link: str) -> str | None:
    """Why a link leads nowhere, or None."""
    target, _, anchor = link.partition("#")
    to = path
    if target:
        absolute = (ROOT / path.parent / target).resolve()
        if not absolute.is_relative_to(ROOT) or not absolute.exists():
            return f"{link}: there is no such file"
        to = absolute.relative_to(ROOT)
    if anchor and anchor not in anchors(to):
        return f"{link}: {to} has no such heading"
    return None


def spelled_out(span: str) -> list[str]:
    """``a/{b,c}.py`` as the two that it stands for."""
    braces = _BRACES.search(span)
    if braces is None:
        return [span]
    made = (f"{span[: braces.start()]}{one}{span[braces.end() :]}" for one in braces[1].split(","))
    return [each for one in made for each in spelled_out(one)]


def paths(path: Path) -> list[str]:
    """Paths in backticks."""
    found = [one for _, code in _CODE.findall(prose(path)) for one in spelled_out(code.strip())]
    return [one for one in found if _PATH.fullmatch(one) and not one.startswith((*MADE, "/", "."))]


def exists(name: str) -> bool:
    """Whether a path is one of the checkout. ``NAME`` and ``*`` stand for any name."""
    name = re.sub(r"\bNAME\b|\bNNNN\*?", "*", name.rstrip("/"))
    if "/" not in name:
        return any(fnmatch(known, name) for known in KNOWN)
    for room in ROOMS:
        whole = f"{room}/{name}" if room else name
        if "*" in whole and any(ROOT.glob(whole)):
            return True
        if whole in PLACES:
            return True
    return False


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert [why for link in links(path) if (why := dead(path, link))] == []


@pytest.mark.parametrize("path", WITH_PATHS, ids=str)
def test_every_path_that_is_named_exists(path: Path) -> None:
    assert sorted({name for name in paths(path) if not exists(name)}) == []


@pytest.mark.parametrize("name", LIMITS)
def test_a_page_is_no_longer_than_a_page(name: str) -> None:
    lines, characters = LIMITS[name]
    found = text_of(Path(name)).splitlines()
    assert len(found) <= lines
    if characters is not None:
        assert [line for line in found if len(line) > characters] == []


def test_every_page_of_the_documents_is_linked_from_another() -> None:
    reached = {
        str((ROOT / path.parent / link.partition("#")[0]).resolve())
        for path in DOCUMENTS
        for link in links(path)
        if link.partition("#")[0]
    }
    pages = [path for path in DOCUMENTS if path.parts[0] == "docs" or path.parent.name == "runbooks"]
    assert [str(path) for path in pages if str(ROOT / path) not in reached] == []


def test_decisions_keep_to_their_form_and_stand_in_the_index() -> None:
    tool = load_tool("decisions")
    decisions = tool.all_decisions()
    assert [one.number for one in decisions] == list(range(1, len(decisions) + 1))
    for one in decisions:
        assert one.file == tool.file_name(one.number, one.title)
        text = text_of(Path("docs/decisions") / one.file)
        assert 10 <= len(text.splitlines()) <= 30, one.file
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(tool.SECTIONS), one.file
        for section in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]:
            assert section.strip(), one.file
    index = text_of(Path("docs/decisions/README.md"))
    assert index == tool.index(decisions), "run tools/decisions.py index"


def test_every_page_stands_in_the_sites_navigation() -> None:
    site = text_of(Path("mkdocs.yml"))
    listed = set(re.findall(r"^ +- .+: (\S+\.md)$", site, re.MULTILINE))
    pages = {
        str(path)
        for path in DOCUMENTS
        if not (path.parent.name == "runbooks" or re.match(r"docs/decisions/\d", str(path)))
    }
    assert listed == pages


@pytest.mark.parametrize(
    ("markdown", "wrong"),
    [
        ("[a](there.md)", 0),
        ("[a](there.md#a-heading-of-2026)", 0),
        ("[a](gone.md)", 1),
        ("[a](there.md#gone)", 1),
        ("[a](#gone)", 1),
        ("`[a](gone.md)` and\n```\n[b](gone.md)\n```", 0),
        ("[a](mailto:a@example.org)", 0),
    ],
)
def test_a_dead_link_and_a_dead_anchor_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, markdown: str, wrong: int
) -> None:
    (tmp_path / "there.md").write_text("# There\n\n## A `heading`, of 2026\n")
    (tmp_path / "one.md").write_text(markdown)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    anchors.cache_clear()
    try:
        found = [why for link in links(Path("one.md")) if (why := dead(Path("one.md"), link))]
    finally:
        anchors.cache_clear()
    assert len(found) == wrong


@pytest.mark.parametrize(
    ("code", "named", "real"),
    [
        ("libs/anabranch/limits.py", True, True),
        ("libs/anabranch/gone.py", True, False),
        ("runtime/metrics.py", True, True),
        ("alerts/NAME.yaml", True, True),
        ("gone/NAME.yaml", True, False),
        ("gone.py", True, False),
        ("price + 0.0", False, True),
        ("build/site", False, True),
        ("merge/{rows,columns}.py", True, True),
        ("merge/{rows,gone}.py", True, False),
    ],
)
def test_a_path_that_does_not_exist_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, named: bool, real: bool
) -> None:
    (tmp_path / "one.md").write_text(f"See `{code}`.")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    found = paths(Path("one.md"))
    monkeypatch.undo()
    assert found == (spelled_out(code) if named else [])
    assert all(map(exists, found)) is real


def test_the_clients_page_has_every_name_of_the_client() -> None:
    named = re.findall(r"^::: anabranch\.client\.(\w+)$", text_of(Path("docs/reference/client.md")), re.MULTILINE)
    assert sorted(named) == sorted(anabranch.client.__all__)
