"""The resolver's modules import in no circle, and no chain of imports is long: it can be read from the ground up."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = "anabranch_conflict_resolver"
FOLDER = Path(__file__).resolve().parents[3] / "services" / PACKAGE
DEEPEST = 9
SIDE_BY_SIDE = 25


def _name(path: Path) -> str:
    parts = (PACKAGE, *path.relative_to(FOLDER).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in FOLDER.rglob("*.py")}


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of the package that one imports, also for its types alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                whole = f"{node.module}.{one.name}"
                found.add(whole if whole in MODULES else node.module)
    return frozenset(found & MODULES.keys()) - {module}


def chain(module: str, behind: tuple[str, ...] = ()) -> list[str]:
    """The longest chain of imports that begins with a module."""
    assert module not in behind, f"a circle: {' -> '.join((*behind, module))}"
    return [module, *max((chain(one, (*behind, module)) for one in imports(module)), key=len, default=[])]


def test_no_chain_of_imports_is_long_and_none_is_a_circle() -> None:
    longest = max(map(chain, MODULES), key=len)
    assert longest[0] == f"{PACKAGE}.__main__", "it imports all others"
    assert len(longest) <= DEEPEST, " -> ".join(longest)


def test_no_room_is_crowded() -> None:
    for folder in {path.parent for path in MODULES.values()}:
        assert len([path for path in folder.glob("*.py") if path.stem != "__init__"]) <= SIDE_BY_SIDE, folder
