"""Checks names and sizes: `python infra/check_names.py [PATH …]`. Exit status 1 and a list if something is wrong.

- No two public types of a package, and no two exported types of the page and the TypeScript clients, have the same
  name.
- No identifier is obsolete by `docs/glossary.md`, and no constant is called `MOST_…` or `LEAST_…`.
- No function has more than 60 lines, and no module more than 400.
- No docstring begins with a word that hides its subject, such as "Who" or "What".
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "app" / "khala"
CLIENT = ROOT / "app" / "clients" / "python" / "src" / "khala_client"
PAGE = ROOT / "app" / "web" / "src"
CLIENTS = ROOT / "app" / "clients" / "typescript"
GLOSSARY = ROOT / "docs" / "glossary.md"
MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 400
VAGUE_OPENINGS = {"Who", "Whoever", "Whom", "What", "Whatever", "Where", "Wherever", "Nobody", "Nothing", "That"}
OBSOLETE_PREFIXES = ("MOST_", "LEAST_")
EXPORTED_TYPE = re.compile(r"^export (?:declare )?(?:abstract )?(?:interface|type|class|enum) (\w+)", re.MULTILINE)
PAGE_CONSTANT = re.compile(r"^(?:export )?const ((?:MOST|LEAST)_\w+)", re.MULTILINE)
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _obsolete_words() -> set[str]:
    """The words in the last column of the glossary's tables."""
    words = set()
    for line in GLOSSARY.read_text().splitlines():
        cells = line.strip().removeprefix("|").removesuffix("|").split("|")
        if line.startswith("| ") and len(cells) == 4:
            words.update(re.findall(r"`(\w+)`", cells[3]))
    return words


def problems(paths: Sequence[Path]) -> Iterator[str]:
    """One line for each violation in these files and folders."""
    obsolete = _obsolete_words()
    defined: list[dict[str, list[str]]] = []
    for package in (PACKAGE, CLIENT):
        types: dict[str, list[str]] = defaultdict(list)
        for path in sorted(package.rglob("*.py")):
            tree = ast.parse(path.read_text())
            where = str(path.relative_to(ROOT))
            for name in _public_types(tree):
                types[name].append(where)
            if any(path.is_relative_to(one) for one in paths):
                yield from _module_problems(path, tree, where, obsolete)
        defined.append(types)
    exported: dict[str, list[str]] = defaultdict(list)
    for path in [*sorted(PAGE.rglob("*.ts")), *sorted(_client_sources())]:
        text, where = path.read_text(), str(path.relative_to(ROOT))
        for name in EXPORTED_TYPE.findall(text):
            exported[name].append(where)
        if any(path.is_relative_to(one) for one in paths):
            yield from (f"{where}: {name} is obsolete: see docs/glossary.md" for name in PAGE_CONSTANT.findall(text))
    for found in (*defined, exported):
        for name, places in sorted(found.items()):
            if len(places) > 1 and any(Path(ROOT, one).is_relative_to(path) for one in places for path in paths):
                yield f"{places[0]}: the type {name} is also defined in {', '.join(places[1:])}"


def _client_sources() -> Iterator[Path]:
    """The sources of the packages, without what is installed or built there."""
    return (path for folder in CLIENTS.glob("*/src") for path in folder.rglob("*.ts*"))


def _public_types(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            name = ast.unparse(node.target)
            if not name.startswith("_"):
                yield name


def _module_problems(path: Path, tree: ast.Module, where: str, obsolete: set[str]) -> Iterator[str]:
    lines = len(path.read_text().splitlines())
    if lines > MAX_MODULE_LINES:
        yield f"{where}: {lines} lines, more than {MAX_MODULE_LINES}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{where}:{node.lineno}: {node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            opening = (ast.get_docstring(node) or " ").split(maxsplit=1)[:1]
            if opening and opening[0].rstrip(",:") in VAGUE_OPENINGS:
                yield f"{where}:{getattr(node, 'lineno', 1)}: the docstring begins with {opening[0]!r}"
        for name in _defined(node):
            if _is_obsolete(name, obsolete):
                yield f"{where}:{getattr(node, 'lineno', 1)}: {name} is obsolete: see docs/glossary.md"


def _defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def _is_obsolete(name: str, obsolete: set[str]) -> bool:
    bare = name.lstrip("_")
    words = {word.lower() for word in WORDS.findall(name)}
    return bare.startswith(OBSOLETE_PREFIXES) or bare in obsolete or bool(words & obsolete)


def main() -> None:
    """Print all problems of the given paths, or of the whole tree."""
    paths = [Path(path).resolve() for path in sys.argv[1:]] or [PACKAGE, CLIENT, PAGE, CLIENTS]
    found = list(problems(paths))
    for problem in found:
        print(problem)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
