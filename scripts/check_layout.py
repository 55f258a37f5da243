"""The directions that imports may take, and how long a file may be. Prints what is wrong, exits 1.

Reads the sources as text (``ast`` for Python, line patterns for Cython), so an import hidden in a
function, behind TYPE_CHECKING or in ``import_module("...")`` counts like any other.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ROOMS = {
    "decoder": "rondel.decoder",
    "server": "rondel.server",
    "client": "rondel.client",
    "proto/rondel/v1": "rondel.v1",
}

_DECODER = "rondel.decoder"
_ERRORS = f"{_DECODER}.errors"
_SPEC = f"{_DECODER}.spec"
_ROPE = f"{_DECODER}.rope"
_OPTIONS = f"{_DECODER}.options"
_BINARY = f"{_DECODER}.binary"

# Module (the longest prefix that fits rules) -> what of ours it may import, by prefix.
ALLOWED: dict[str, tuple[str, ...]] = {
    "rondel": ("rondel.decoder", "rondel.client"),
    _DECODER: (_DECODER,),
    _ERRORS: (),
    f"{_DECODER}.checks": (_ERRORS,),
    f"{_DECODER}.rope_scaling": (_ERRORS, f"{_DECODER}.checks"),
    f"{_DECODER}.rope_config": (_ERRORS, f"{_DECODER}.checks", f"{_DECODER}.rope_scaling"),
    _ROPE: (_ERRORS, *(f"{_DECODER}.{name}" for name in ("checks", "rope_scaling", "rope_config"))),
    _SPEC: (_ERRORS, f"{_DECODER}.checks", _ROPE),
    f"{_DECODER}.reference": (_ERRORS, f"{_DECODER}.reference"),
    f"{_DECODER}.kernels": (_ERRORS, f"{_DECODER}.kernels"),
    f"{_DECODER}.cache": (_ERRORS, _SPEC, f"{_DECODER}.checks", f"{_DECODER}.cache"),
    f"{_DECODER}.cache.record": (
        _ERRORS,
        _SPEC,
        *(f"{_DECODER}.{name}" for name in ("cache", "snapshot_header")),
    ),
    f"{_DECODER}.cache.draft": (
        _ERRORS,
        _SPEC,
        *(f"{_DECODER}.{name}" for name in ("cache", "snapshot_header")),
    ),
    f"{_DECODER}.cache.survey": (
        _ERRORS,
        _SPEC,
        *(f"{_DECODER}.{name}" for name in ("cache", "snapshot_header")),
    ),
    f"{_DECODER}.damage": (_SPEC, *(f"{_DECODER}.{name}" for name in ("cache", "kernels"))),
    f"{_DECODER}.kept": (_ERRORS, *(f"{_DECODER}.{name}" for name in ("cache", "view"))),
    f"{_DECODER}.arrays": (_ERRORS, _SPEC, f"{_DECODER}.kernels"),
    f"{_DECODER}.quality": (),
    f"{_DECODER}.appraisal": (_SPEC, *(f"{_DECODER}.{name}" for name in ("cache", "quality"))),
    f"{_DECODER}.stats": (f"{_DECODER}.cache", f"{_DECODER}.quality"),
    f"{_DECODER}.tensor_file": (_ERRORS,),
    f"{_DECODER}.projection": (
        _ERRORS,
        _SPEC,
        *(f"{_DECODER}.{name}" for name in ("arrays", "kernels", "tensor_file")),
    ),
    f"{_DECODER}.options": (_ERRORS, _SPEC, f"{_DECODER}.checks"),
    f"{_DECODER}.explanation": (f"{_DECODER}.checks",),
    f"{_DECODER}.partials": (_ERRORS,),
    f"{_DECODER}.edits": (_SPEC, _OPTIONS, f"{_DECODER}.arrays", f"{_DECODER}.kernels"),
    f"{_DECODER}.rows": (
        *(_SPEC, _OPTIONS),
        *(f"{_DECODER}.{name}" for name in ("arrays", "cache", "edits", "kernels", "partials")),
    ),
    f"{_DECODER}.explain": (
        *(_ERRORS, _SPEC, _OPTIONS),
        *(f"{_DECODER}.{name}" for name in ("edits", "explanation", "kernels", "partials", "rows")),
    ),
    f"{_DECODER}.answer": (
        *(_ERRORS, _OPTIONS),
        *(f"{_DECODER}.{name}" for name in ("arrays", "cache", "explain", "explanation", "kernels", "rows")),
    ),
    f"{_DECODER}.call": (
        _OPTIONS,
        *(f"{_DECODER}.{name}" for name in ("arrays", "cache", "kernels", "rows")),
    ),
    f"{_DECODER}.writer": (_ERRORS, _SPEC, *(f"{_DECODER}.{name}" for name in ("call", "cache", "kernels"))),
    f"{_DECODER}.usual": (_SPEC, *(f"{_DECODER}.{name}" for name in ("arrays", "cache", "kernels"))),
    f"{_DECODER}.machine": (),
    f"{_DECODER}.pool": (_ERRORS, f"{_DECODER}.machine", f"{_DECODER}.kernels"),
    f"{_DECODER}.turn": (_ERRORS,),
    f"{_DECODER}.view": (
        _SPEC,
        *(f"{_DECODER}.{name}" for name in ("appraisal", "cache", "quality", "stats", "turn", "writer")),
    ),
    f"{_DECODER}.readable": tuple(
        f"{_DECODER}.{name}" for name in ("arrays", "cache", "call", "kernels", "view")
    ),
    f"{_DECODER}.snapshot_header": (_ERRORS, _SPEC, _ROPE, f"{_DECODER}.checks", f"{_DECODER}.rope_scaling"),
    f"{_DECODER}.snapshot_pages": (
        *(_ERRORS, _SPEC),
        *(f"{_DECODER}.{name}" for name in ("cache", "kernels", "snapshot_header")),
    ),
    f"{_DECODER}.binary": (_ERRORS,),
    f"{_DECODER}.snapshot": (
        *(_ERRORS, _SPEC, _BINARY),
        *(f"{_DECODER}.{name}" for name in ("cache", "snapshot_header", "snapshot_pages", "turn", "view")),
    ),
    f"{_DECODER}.restore": (
        *(_ERRORS, _SPEC, _BINARY),
        *(f"{_DECODER}.{name}" for name in ("cache", "snapshot", "snapshot_header", "snapshot_pages")),
    ),
    f"{_DECODER}.session": tuple(
        f"{_DECODER}.{name}"
        for name in (
            *("errors", "spec", "options", "explanation", "arrays", "answer", "call", "projection", "writer"),
            *("pool", "cache", "kernels", "binary", "readable", "snapshot", "restore", "kept", "usual"),
        )
    ),
    f"{_DECODER}.batch": (
        *(_ERRORS, _OPTIONS),
        *(
            f"{_DECODER}.{name}"
            for name in ("arrays", "cache", "call", "session", "kernels", "turn", "usual")
        ),
    ),
    f"{_DECODER}.arena_report": tuple(
        f"{_DECODER}.{name}" for name in ("cache", "checks", "damage", "kernels")
    ),
    f"{_DECODER}.attach": (
        _ERRORS,
        *(f"{_DECODER}.{name}" for name in ("cache", "checks", "damage", "kernels", "session", "turn")),
    ),
    f"{_DECODER}.lm": (_ERRORS, _SPEC, _ROPE, f"{_DECODER}.rope_scaling", f"{_DECODER}.lm"),
    "rondel.v1": (
        *(_ERRORS, _SPEC, _OPTIONS, _ROPE),
        *(f"{_DECODER}.rope_scaling", f"{_DECODER}.explanation", "rondel.v1"),
    ),
    "rondel.server": ("rondel.v1", _DECODER, "rondel.server"),
    "rondel.client": (
        *("rondel.v1", _ERRORS, _SPEC, _OPTIONS, _BINARY),
        *(f"{_DECODER}.explanation", f"{_DECODER}.quality", "rondel.client"),
    ),
    # The load generator is a client, but for the twin that its answers are compared with.
    "rondel.client.load.twin": (
        *(_ERRORS, _SPEC, "rondel.client.values", "rondel.client.load.workload"),
        *(f"{_DECODER}.{name}" for name in ("kernels", "session", "cache.arena")),
    ),
    "rondel.client.cli": ("rondel",),
}
# The package's version is a leaf that every room may read.
ANYWHERE = ("rondel.__version__",)

# Foreign modules that a room must do without. Generated code is not looked at.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    _DECODER: ("grpc", "grpc_status", "asyncio", "google"),
    "rondel.v1": ("grpc", "grpc_status", "asyncio"),
}
# With the root on sys.path these would be importable by accident, and `proto` is also a foreign package.
BARE = ("decoder", "server", "client", "proto", "v1")

MAX_LINES = 300
# path -> why it may be longer.
LONGER: dict[str, str] = {
    "decoder/errors.py": "the whole exception tree, read as one table",
}

_SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".pxi"}
_COUNTED = _SUFFIXES | {".h", ".c"}
_GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
_FROM = re.compile(r"^\s*from\s+(\.*[\w.]*)\s+c?import\s+(.*)$")
_IMPORT = re.compile(r"^\s*c?import\s+(.*)$")


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every source file of ours that can hold imports, generated ones left out."""
    yield "rondel", root / "src/rondel/__init__.py"
    for folder, package in ROOMS.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in _SUFFIXES and not _GENERATED.search(path.name):
                parts = path.relative_to(root / folder).with_suffix("").parts
                yield ".".join([package, *(part for part in parts if part != "__init__")]), path


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything the file imports; relative names keep their dots."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in {".py", ".pyi"}:
        yield from _python_imports(ast.parse(text, filename=str(path)))
    else:
        yield from _cython_imports(text)


def _python_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                start = "." * level + (module or "")
                yield from ((node.lineno, _join(start, name.name)) for name in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def _cython_imports(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.partition("#")[0]
        if found := _FROM.match(line):
            names = [_bare_name(name) for name in found[2].strip("() \\").split(",")]
            yield from ((number, _join(found[1], name)) for name in names if name or len(names) == 1)
        elif found := _IMPORT.match(line):
            yield from ((number, _bare_name(name)) for name in found[1].split(","))


def _bare_name(clause: str) -> str:
    return clause.split(" as ")[0].strip()


def _join(module: str, name: str) -> str:
    return f"{module.rstrip('.')}.{name}" if name and not module.startswith(".") else module + name


def _within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def _rule(module: str, table: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    fitting = [key for key in table if _within(module, (key,)) and (key != "rondel" or module == "rondel")]
    return table[max(fitting, key=len)] if fitting else ()


def wrong_import(module: str, name: str) -> str | None:
    """Why ``module`` may not import ``name``, or None."""
    if name.startswith("."):
        return f"{module} imports {name}: relative imports are not used"
    if _within(name, BARE):
        return f"{module} imports {name}: a room is only imported as rondel.{name}"
    if _within(name, ("rondel",)):
        if _within(name, _rule(module, ALLOWED) + ANYWHERE):
            return None
        return f"{module} imports {name}: that way is closed (scripts/check_layout.py, ALLOWED)"
    if _within(name, _rule(module, FORBIDDEN)):
        return f"{module} imports {name}: this room does without it"
    return None


def import_problems(root: Path) -> list[str]:
    """Every import that goes a way it may not, as ``path:line: why``."""
    problems = []
    for module, path in modules(root):
        for line, name in imports(path):
            if why := wrong_import(module, name):
                problems.append(f"{path.relative_to(root)}:{line}: {why}")
    return problems


def size_problems(root: Path) -> list[str]:
    """Every source file of ours longer than MAX_LINES without a reason in LONGER."""
    problems = []
    for folder in [*ROOMS, "conformance", "scripts", "src/rondel/__init__.py", "setup.py"]:
        start = root / folder
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            if path.suffix not in _COUNTED or _GENERATED.search(path.name):
                continue
            lines = len(path.read_text(encoding="utf-8").splitlines())
            name = path.relative_to(root).as_posix()
            if lines > MAX_LINES and name not in LONGER:
                problems.append(
                    f"{name}: {lines} lines, the budget is {MAX_LINES}: split it, or say why in LONGER"
                )
    return problems


if __name__ == "__main__":
    found = import_problems(ROOT) + size_problems(ROOT)
    print("\n".join(found) or "layout: clean")
    sys.exit(bool(found))
