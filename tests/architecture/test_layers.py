"""Check the directions of the architecture by reading the imports."""

import ast
import os
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.architecture import rooms

ROOT = Path(__file__).parents[2]
STDLIB = frozenset(sys.stdlib_module_names)

# Each dependency has one importing module or folder.
HOMES = {
    "argon2": "server/auth/login/accounts.py",
    "authlib": "server/auth/oauth_server/authlib.py",
    "PIL": ("tools/reading/workers/pictures.py", "tools/reading/workers/tones.py"),
    "alembic": "server/state/",
    "cryptography": ("server/state/keys/sealed_state.py", "server/features/nodes/tls/authority.py"),
    "asyncpg": "server/features/postgres/database/driver.py",
    "click": "server/cli/",
    "ddgs": "tools/reading/search/ddgs_worker.py",
    "certifi": "tools/api/outbound/vetted_client.py",
    "html_to_markdown": "tools/reading/web/html/markdown.py",
    "httpcore": ("tools/api/outbound/vetted_client.py", "server/cli/mcp_client/http.py"),
    "httpx": "tools/api/outbound/vetted_client.py",
    "jinja2": "transports/web/templates.py",
    "joserfc": "server/auth/tokens/jose.py",
    "jsonschema_rs": "tools/api/schema/schema.py",
    "lxml": "tools/reading/web/html/",
    "h11": "tools/workspace/sandbox/egress/http.py",
    "opentelemetry": "server/features/telemetry/traces.py",
    "playwright": "tools/reading/browser/",
    "prometheus_client": "server/features/telemetry/metrics/",
    "pypdfium2_raw": "tools/reading/pdf/library.py",
    "redis": "server/features/replicas/redis/connection.py",
    "psutil": (
        "tools/workspace/processes/process_tree.py",
        "server/auth/login/trusted_proxies.py",
    ),  # the first is loaded by a program of its own
    "pyseccomp": "tools/workspace/sandbox/syscalls.py",
    "sqlalchemy": ("server/state/", "server/features/postgres/database/"),
    "sse_starlette": "transports/sse.py",
    "starlette": ("server/app/http_app.py", "transports/web/"),
    "trafilatura": "tools/reading/web/content/text_vote.py",
    "uritemplate": "tools/api/text/uri_templates.py",
    "uvicorn": "transports/http/server.py",
    "uvloop": ("server/cli/serve.py", "server/features/nodes/commands/node.py"),
    "watchfiles": "server/base/watch.py",
    "yaml": ("tools/builtin/skills/yaml_fields.py", "server/features/mounts/config/imports/notation.py"),
}

STORES = re.compile(r"\b(SqliteStore|PostgresStore)\b")

# Files and processes are reached through Workspace. In tools/ only these touch them by themselves, each for a reason.
DOORS = {
    "tools/api/plugins/": "plugins, in folders that the administrator named",
    "tools/api/installation.py": "what the program's installer has left in its environment",
    "tools/reading/browser/": "the browser's own program, profile and user; pages see no file",
    "tools/workspace/sandbox/cgroups/": "the kernel's files of control groups",
    "tools/workspace/files/safe_walk.py": "whoever has a door: it looks through folders for them",
    "tools/workspace/files/access.py": "the workspace's files: it is what Workspace opens them with",
    "tools/builtin/skills/frontmatter.py": "skills, in folders that the administrator named",
    "tools/api/outbound/dns.py": "looks names up",
    "tools/workspace/processes/": "the workspace's processes, the programs that start them and an input for one",
    "tools/workspace/files/rmtree.py": "whoever has a door: it removes folders for them",
    "tools/workspace/commands/temporary_folders.py": "folders for the temporary files of the workspace's commands",
    "tools/workspace/sandbox/egress/sandbox_proxy.py": "the sandbox's way out, a socket from inside it",
    "tools/api/outbound/address_policy.py": "asks the kernel whose an address is; sends nothing",
    "tools/workspace/sandbox/": "the sandbox that the workspace's commands are in",
    "tools/builtin/skills/files.py": "skills, as above",
    "tools/builtin/skills/absence.py": "skills, as above",
    "tools/builtin/skills/skills.py": "skills, as above, and their cache in the state folder",
    "tools/workspace/output/run_output.py": "the output of the workspace's commands",
    "tools/api/regular_file.py": "files of the state folder, and those that options name",
    "tools/workspace/output/spool.py": "the runs of the workspace's commands, and where their output is",
    "tools/reading/pdf/": "calls a library of C, which reads PDFs in memory",
    "tools/reading/workers/worker.py": "the program that works on untrusted documents, and gives up what it could do",
    "tools/reading/workers/pool.py": "starts that",
}
TOUCHING = "subprocess shutil socket tempfile fcntl ctypes pty multiprocessing glob fileinput"
OS_CALLS = (
    "open fork forkpty kill killpg posix_spawn posix_spawnp system popen unlink remove rename replace renames rmdir "
    "removedirs mkdir makedirs mknod mkfifo link symlink readlink truncate chmod chown lchown scandir listdir walk "
    "fwalk stat lstat access chdir chroot utime "
) + " ".join(name for name in dir(os) if name.startswith(("exec", "spawn")))
PATH_CALLS = (
    "read_text read_bytes write_text write_bytes unlink rmdir mkdir touch symlink_to hardlink_to iterdir rglob "
    "create_subprocess_exec create_subprocess_shell subprocess_exec subprocess_shell"
)
PATHS = ("path", "file", "folder", "root")  # what is called so is one, and these methods are not those of a text
NAMED_PATH_CALLS = "open chmod rename replace stat lstat exists is_file is_dir glob"


@cache
def imports(path: Path) -> frozenset[str]:
    """Return all modules that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found.update(argument.value for argument in node.args if isinstance(argument, ast.Constant))
    return frozenset(found)


def sources(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py"))


def offenders(paths: list[Path], *forbidden: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in imports(path)
        if any(name == ban or name.startswith(ban + ".") for ban in forbidden)
    ]


def test_a_tool_imports_no_server_no_transport_and_no_web_framework() -> None:
    banned = ("toolgate.server", "toolgate.transports", "starlette", "uvicorn")
    assert offenders(sources("tools"), *banned) == []


def test_the_core_imports_no_transport() -> None:
    above = ("server/app/", "server/cli/", "server/features/")
    core = [path for path in sources("server") if not str(path.relative_to(ROOT)).startswith(above)]
    assert offenders(core, "toolgate.transports") == []


def test_a_transport_imports_no_tools_no_methods_and_no_other_transport() -> None:
    transports = [f"toolgate.transports.{name}" for name in ("stdio", "sse", "streamable_http")]
    assert offenders(sources("transports"), "toolgate.tools", "toolgate.server.methods", *transports) == []


def test_messages_and_errors_import_only_the_standard_library_msgspec_and_each_other() -> None:
    for name in ("messages.py", "message_ids.py", "message_limits.py", "errors.py"):
        for module in imports(ROOT / "server" / "protocol" / name):
            top = module.split(".")[0]
            assert (
                top in STDLIB
                or top == "msgspec"
                or module.startswith(("toolgate.server.protocol.errors", "toolgate.server.protocol.message"))
            ), module


def test_only_config_reads_the_environment() -> None:
    for path in sources("server") + sources("tools") + sources("transports"):
        if path.name == "load.py":
            continue
        text = path.read_text()
        assert "os.environ" not in text and "getenv" not in text, path


def test_each_dependency_has_one_home() -> None:
    for path in sources("server") + sources("tools") + sources("transports"):
        relative = str(path.relative_to(ROOT))
        for module in imports(path):
            home = HOMES.get(module.split(".")[0])
            assert home is None or relative.startswith(home), f"{relative} imports {module}"


@pytest.mark.parametrize("homes", HOMES.values(), ids=HOMES)
def test_the_homes_of_a_dependency_are_there(homes: str | tuple[str, ...]) -> None:
    for home in (homes,) if isinstance(homes, str) else homes:
        rooms.find_modules(home)


def test_only_the_host_and_the_feature_of_a_database_open_a_store() -> None:
    homes = ("server/app/state_host.py", "server/state/sqlite/", "server/features/postgres/")
    naming = [str(path) for path in rooms.sources() if STORES.search((ROOT / path).read_text())]
    assert [path for path in naming if not path.startswith(homes)] == [], "use open_store or build_host"
    assert "server/app/state_host.py" in naming


def touches(tree: ast.AST) -> set[str]:
    """Return the calls by which a module changes processes and files."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.split(".")[0] in TOUCHING.split())
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            of_os = [f"os.{alias.name}" for alias in node.names if module == "os" and alias.name in OS_CALLS.split()]
            found.update(of_os, [module] if module.split(".")[0] in TOUCHING.split() else [])
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("os", "io"):
            found.update([f"os.{node.attr}"] if node.attr in OS_CALLS.split() else [])
        elif isinstance(node, ast.Call):
            found.update(_touch(node.func))
    return found


def _touch(called: ast.expr) -> set[str]:
    if isinstance(called, ast.Name):
        return {called.id} & {"open", "__import__", "eval", "exec"}
    if not isinstance(called, ast.Attribute):
        return set()
    named = NAMED_PATH_CALLS if ast.unparse(called.value).endswith(PATHS) else ""
    return {called.attr} & {*PATH_CALLS.split(), *named.split()}


def test_in_tools_only_the_workspace_and_what_is_its_own_touch_processes_and_files() -> None:
    used: set[str] = set()
    for path in sources("tools"):
        relative = str(path.relative_to(ROOT))
        doors = {door for door in DOORS if relative.startswith(door)}
        found = touches(ast.parse(path.read_text()))
        assert doors or not found, f"{relative} goes past Workspace: {sorted(found)}"
        used |= doors if found else set()
    assert DOORS.keys() - used == set(), "these need no door"


def test_whatever_goes_past_the_workspace_is_seen() -> None:
    past = (
        "import subprocess",
        "from shutil import rmtree",
        "import asyncio.subprocess as a, socket",
        "from os import open as o",
        "f = os.open",
        "os.execv(p, [])",
        "os.kill(1, 9)",
        "open(p)",
        "io.open(p)",
        "Path(p).read_text()",
        "self.path.open()",
        "(folder / name).unlink()",
        "asyncio.create_subprocess_exec('sh')",
        "loop.subprocess_shell(p, 'x')",
    )
    assert [line for line in past if not touches(ast.parse(line))] == []
    fine = ("text.replace('a', 'b')", "await ctx.workspace.read_file(p, 1, anywhere=False)", "os.path.join(a, b)")
    assert [line for line in fine if touches(ast.parse(line))] == []


def test_the_sdks_are_for_tests_only() -> None:
    assert offenders(sources("server") + sources("tools") + sources("transports"), "mcp", "fastmcp", "mcp_types") == []


def test_heavy_libraries_are_imported_where_they_are_needed() -> None:
    """Desktop users wait for start-up: no module imports these when it is imported."""
    heavy = {*HOMES, "starlette", "uvicorn", "authlib", "playwright", "sqlite3", "ssl"}
    # loaded only when HTTP is served, traces are sent, the browser runs, a command is given, or the state is used
    deferred = {
        "http_app.py",
        "transports/http/server.py",
        "sse.py",
        "streamable_http.py",
        "authlib.py",
        "browser/page_load.py",
        "replicas/redis/connection.py",
        "egress/http.py",
        "outbound/vetted_client.py",
        "metrics/collector.py",
        "telemetry/traces.py",
        "parsing/command_line.py",
        "parsing/help.py",
        "mounts/upstream/http_connection.py",
        "postgres/database/driver.py",
        "postgres/database/preparation.py",
        "state/schema.py",
        "nodes/tls/authority.py",
        "nodes/tls/certificate_file.py",
        "nodes/tls/failures.py",
    }  # loaded when HTTP is served, a URL mounted, a page fetched, a browser run, a command given, the state used
    deferred |= {str(path) for path in sources("transports/web")}
    for path in sources("server") + sources("tools") + sources("transports"):
        if str(path).endswith(tuple(deferred)) or "migrations" in path.parts:  # Alembic loads those
            continue
        top_level = ast.parse(path.read_text()).body
        names = {alias.name for node in top_level if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in top_level if isinstance(node, ast.ImportFrom)}
        loaded = {name for name in names if name.split(".")[0] in heavy}
        assert not loaded, f"{path} loads {loaded} at import"
