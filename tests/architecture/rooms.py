"""Read the program's rooms and the imports between them.

A room is a folder of modules, or a module that lies loose because several rooms share it. `ORDER` is the
layers from the bottom up: a room imports itself and what stands before it, late and type-only imports included.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.needed_features import is_deleted

ROOT = Path(__file__).parents[2]
TOPS = ("server", "tools", "transports")

ORDER = (
    "tools/api/errors.py",
    "tools/api/content.py",
    "tools/api/text",
    "tools/api/schema",
    "tools/api/concurrency",
    "tools/api/context",
    "tools/api",
    "tools/api/outbound",
    "tools/api/plugins",
    "tools/workspace/sandbox/cgroups",
    "tools/workspace/processes",
    "tools/workspace/files",
    "tools/workspace/output",
    "tools/workspace/limits.py",
    "tools/workspace/workspace.py",
    "tools/workspace/workspaces.py",
    "tools/workspace/commands",
    "tools/workspace",
    "tools/reading/encodings",
    "tools/reading/web",
    "tools/reading/pdf",
    "tools/workspace/sandbox/egress",
    "tools/workspace/sandbox",
    "tools/reading/workers",
    "tools/reading/search",
    "tools/reading/browser",
    "tools/reading/pages",
    "tools/builtin",
    "tools/__init__.py",
    "server/__init__.py",
    "server/base",
    "server/protocol",
    "server/base/log_format.py",
    "server/base/logging.py",
    "server/base/rpc",
    "server/state/flags.py",
    "server/state/schema.py",
    "server/state/tables.py",
    "server/state/errors.py",
    "server/state/live_processes.py",
    "server/state/store.py",
    "server/state/commit_gate.py",
    "server/state/batch.py",
    "server/state/migrate.py",
    "server/state/sqlite",
    "server/state/rows",
    "server/state/keys",
    "server/state",
    "server/calls/policy",
    "server/config/files",
    "server/config",
    "server/workspaces",
    "server/calls",
    "server/state/backup",
    "server/auth",
    "server/methods",
    "transports/http/wire",
    "transports/http/sessions",
    "transports/http/requests",
    "transports/http",
    "transports/__init__.py",
    "transports/sse.py",
    "transports/stdout_channel.py",
    "transports/stdio.py",
    "transports/streamable_http.py",
    "transports/web",
    "server/app",
    "server/cli/terminal",
    "server/cli/mcp_client",
    "server/cli/sign_in",
    "server/cli/parsing",
    "server/cli/commands",
    "server/cli/doctor/report.py",
    "server/cli/doctor/machine.py",
    "server/cli/doctor",
    "server/cli",
    "server/features",
    "server/features/clients",
    "server/features/telemetry",
    "server/features/events/webhooks",
    "server/features/events/log",
    "server/features/events/sources",
    "server/features/events/delivery",
    "server/features/events",
    "server/features/postgres/database_url.py",
    "server/features/postgres/database",
    "server/features/postgres",
    "server/features/remote_checks",
    "server/features/replicas",
    "server/features/nodes",
    "server/features/mounts/config",
    "server/features/mounts",
    "server/__main__.py",
)


def sources(folder: str | None = None) -> list[Path]:
    """Return the paths of the program's modules from the root, of one top folder or of all."""
    tops = TOPS if folder is None else (folder,)
    return [path.relative_to(ROOT) for top in tops for path in sorted((ROOT / top).rglob("*.py"))]


def find_modules(entry: str) -> list[Path]:
    """Return the paths of a file, or of the modules of a folder: none of a feature that was deleted. Raises
    FileNotFoundError if there are none otherwise: a rule on what has moved away holds nothing.
    """
    found = [path for path in sources(entry.split("/")[0]) if f"{path}/".startswith(entry.removesuffix("/") + "/")]
    if not found and not is_deleted(entry):
        raise FileNotFoundError(f"{entry} has no modules: name the place that they moved to")
    return found


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file. To walk a tree takes as long as to parse it."""
    return tuple(ast.walk(parse(path)))


@cache
def modules() -> dict[str, Path]:
    """Return the path of each module by its import name."""
    return {"toolgate." + str(path)[:-3].replace("/", ".").removesuffix(".__init__"): path for path in sources()}


@cache
def imports(path: Path) -> tuple[tuple[int, Path], ...]:
    """Return the line and file of each of the program's modules that a file imports, anywhere in it."""
    return tuple(_find_imports(path))


def _find_imports(path: Path) -> Iterator[tuple[int, Path]]:
    for node in nodes(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else node.module or "" for name in names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        yield from ((node.lineno, modules()[name]) for name in names if name in modules())


@cache
def room(path: Path) -> str:
    """Return the room of a file. Raises KeyError for a file that `ORDER` does not have."""
    rooms = [entry for entry in ORDER if str(path) == entry or str(path).startswith(entry + "/")]
    if not rooms:
        raise KeyError(f"{path} is in no room: add it to tests/architecture/rooms.py, or move it into one")
    return max(rooms, key=len)


def folders() -> list[Path]:
    """Return every folder of modules."""
    return sorted({path.parent for path in sources() if "migrations" not in path.parts})


def describe(path: Path) -> str:
    """Return the first sentence of a module's docstring, or ""."""
    text = ast.get_docstring(parse(path)) if (ROOT / path).is_file() else None
    return " ".join((text or "").split("\n\n")[0].split())


@cache
def arrows() -> dict[tuple[str, str], list[str]]:
    """Return the imports between rooms, with their lines."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sources():
        for line, target in imports(path):
            if room(path) != room(target):
                found.setdefault((room(path), room(target)), []).append(f"{path}:{line} imports {target}")
    return found


def circles(edges: dict[Path, set[Path]]) -> list[list[Path]]:
    """Return the groups of files that import each other in a circle."""
    reached: dict[Path, set[Path]] = {}
    for start in edges:
        seen: set[Path] = set()
        waiting = list(edges[start])
        while waiting:
            if (target := waiting.pop()) not in seen:
                seen.add(target)
                waiting.extend(edges.get(target, ()))
        reached[start] = seen
    groups = {frozenset(other for other in seen if start in reached.get(other, ())) for start, seen in reached.items()}
    return sorted(sorted(group) for group in groups if group)


def file_circles() -> list[list[Path]]:
    return circles({path: {target for _, target in imports(path)} - {path} for path in sources()})
