"""Who may import whom: the directions of the architecture, held by reading the imports."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
STDLIB = frozenset(sys.stdlib_module_names)

# Each dependency has one importing module or folder.
HOMES = {
    "argon2": "server/auth/accounts.py",
    "authlib": "server/auth/issuing/library.py",
    "PIL": "tools/pictures.py",
    "cryptography": "server/seal.py",
    "ddgs": "tools/search/borrowed.py",
    "certifi": "tools/wire.py",
    "html_to_markdown": "tools/pages.py",
    "httpcore": "tools/wire.py",
    "httpx": "tools/wire.py",
    "jinja2": "transports/pages.py",
    "joserfc": "server/auth/jose.py",
    "jsonschema_rs": "tools/schema.py",
    "lxml": "tools/article.py",
    "h11": "tools/proxy/talk.py",
    "playwright": "tools/browser/",
    "pypdf": "tools/pdf.py",
    "psutil": "tools/supervisor.py",
    "pyseccomp": "tools/sandbox/syscalls.py",
    "httptools": "transports/http.py",
    "sqlalchemy": "server/state/",
    "sse_starlette": "transports/sse.py",
    "starlette": "server/site.py",
    "trafilatura": "tools/article.py",
    "uritemplate": "tools/uris.py",
    "uvicorn": "transports/http.py",
    "uvloop": "server/cli.py",
    "watchfiles": "server/watch.py",
    "yaml": "tools/frontmatter.py",
}


def imports(path: Path) -> set[str]:
    """All modules a file imports, wherever in it."""
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
    return found


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
    core = [path for path in sources("server") if path.name not in ("app.py", "cli.py", "site.py")]
    assert offenders(core, "toolgate.transports") == []


def test_a_transport_imports_no_tools_no_methods_and_no_other_transport() -> None:
    transports = [f"toolgate.transports.{name}" for name in ("stdio", "sse", "streamable_http")]
    assert offenders(sources("transports"), "toolgate.tools", "toolgate.server.methods", *transports) == []


def test_messages_and_errors_import_only_the_standard_library_msgspec_and_each_other() -> None:
    for name in ("messages.py", "errors.py"):
        for module in imports(ROOT / "server" / name):
            top = module.split(".")[0]
            assert (
                top in STDLIB
                or top == "msgspec"
                or module.startswith(("toolgate.server.errors", "toolgate.server.messages"))
            ), module


def test_only_config_reads_the_environment() -> None:
    for path in sources("server") + sources("tools") + sources("transports"):
        if path.name == "config.py":
            continue
        text = path.read_text()
        assert "os.environ" not in text and "getenv" not in text, path


def test_each_dependency_has_one_home() -> None:
    for path in sources("server") + sources("tools") + sources("transports"):
        relative = str(path.relative_to(ROOT))
        for module in imports(path):
            home = HOMES.get(module.split(".")[0])
            assert home is None or relative.startswith(home), f"{relative} imports {module}"


def test_the_sdks_are_for_tests_only() -> None:
    assert offenders(sources("server") + sources("tools") + sources("transports"), "mcp", "fastmcp", "mcp_types") == []


def test_heavy_libraries_are_imported_where_they_are_needed() -> None:
    """Start-up is what a desktop user waits for: no module of ours loads these when it is imported."""
    heavy = {*HOMES, "starlette", "uvicorn", "authlib", "playwright", "sqlite3", "ssl"}
    only_http = {
        "site.py",
        "http.py",
        "sse.py",
        "streamable_http.py",
        "library.py",
        "talk.py",
    }  # themselves loaded only when HTTP is served, or the browser runs
    for path in sources("server") + sources("tools") + sources("transports"):
        if path.name in only_http:
            continue
        top_level = ast.parse(path.read_text()).body
        names = {alias.name for node in top_level if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in top_level if isinstance(node, ast.ImportFrom)}
        loaded = {name for name in names if name.split(".")[0] in heavy}
        assert not loaded, f"{path} loads {loaded} at import"
