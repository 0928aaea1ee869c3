"""Name the agents: their programs, their configuration of server and model, and how they are kept off the network."""

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.node import node
from tests.servers.forked_command import COMMAND

FOLDER = Path(__file__).parent
MODULES = FOLDER / "node_modules"
INSTALL = "make agents"
ARCH = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
CALL = 20  # seconds for a call, for agents that wait for ever on a broken connection
LONGEST = 300  # seconds that an agent may run: on a busy machine, 100 did not do
PROMPT = "Go on as the script says."


@dataclass(frozen=True, slots=True)
class Place:
    """Where one agent runs: its home, its working folder, its model, and the server it is given."""

    home: Path
    work: Path
    model: str  # the URL
    server: Sequence[str]  # the options of `toolgate install` that say which server


@dataclass(frozen=True, slots=True)
class Agent:
    title: str
    package: str  # whose version is the agent's
    program: Callable[[], list[str]]
    arguments: Sequence[str]  # of a run without a screen
    configure: Callable[[Place], dict[str, str]]  # writes its files; gives its environment
    login: Sequence[str]  # the arguments that sign in at the server
    asks: str = ""  # its first question on the screen; Enter means yes
    tokens: str = ""  # a pattern of its token file, if its login does not end by itself


def packaged(*parts: str) -> Path:
    """Return a file of an installed package. Raises RuntimeError with the line that installs it."""
    path = MODULES.joinpath(*parts)
    if not path.exists():
        raise RuntimeError(f"{path.name} is missing; install it with: {INSTALL}")
    return path


def version(agent: Agent) -> str:
    """Return the version that the lock file names."""
    lock = json.loads((FOLDER / "package-lock.json").read_text())
    return str(lock["packages"][f"node_modules/{agent.package}"]["version"])


def surroundings(place: Place, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of an agent: of the tests' own only PATH."""
    home = str(place.home)
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": home, "TERM": "dumb", **environment}


def run_logged(agent: Agent, arguments: Sequence[str], place: Place, environment: Mapping[str, str], log: Path) -> int:
    """Run the agent to its end, and return its exit code: -1 if it did not end in time."""
    words = [*agent.program(), *arguments]
    with log.open("wb") as file, contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=place.work,
            env=surroundings(place, environment),
            timeout=LONGEST,
        ).returncode
    return -1


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def _install(client: str, place: Place, environment: Mapping[str, str] | None = None) -> None:
    """Have `toolgate install` write the client's configuration, as people do."""
    words = [COMMAND, "install", client, *place.server]
    subprocess.run(
        words, check=True, cwd=place.work, env=surroundings(place, environment or {}), stdin=subprocess.DEVNULL
    )


# -- Claude Code


def _claude() -> list[str]:
    return [str(packaged("@anthropic-ai", f"claude-code-linux-{ARCH}", "claude"))]


def _configure_claude(place: Place) -> dict[str, str]:
    environment = {
        "ANTHROPIC_BASE_URL": place.model,
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "MCP_TOOL_TIMEOUT": str(CALL * 1000),
    }
    found = f"{Path(*_claude()).parent}:{os.environ['PATH']}"  # it does the change itself
    _install("claude-code", place, {**environment, "PATH": found})
    return environment


# -- Codex


def _codex() -> list[str]:
    triple = {"x64": "x86_64", "arm64": "aarch64"}.get(ARCH, ARCH) + "-unknown-linux-musl"
    vendor = packaged("@openai", f"codex-linux-{ARCH}", "vendor", triple)
    return [str(next(vendor.glob("*/codex")))]


def _configure_codex(place: Place) -> dict[str, str]:
    config = f"""model = "scripted"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "{place.model}/v1"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
"""
    _write(place.home / ".codex" / "config.toml", config)
    _install("codex", place)
    return {"SCRIPTED_KEY": "dummy"}


# -- opencode


def _opencode() -> list[str]:
    return [str(packaged(f"opencode-linux-{ARCH}", "bin", "opencode"))]


def _configure_opencode(place: Place) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{place.model}/v1", "apiKey": "dummy"},
        "models": {"scripted": {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}},
    }
    config = {
        "provider": {"scripted": provider},
        "model": "scripted/scripted",
        "small_model": "scripted/scripted",
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
    }
    _write(place.home / ".config" / "opencode" / "opencode.json", json.dumps(config))
    _install("opencode", place)
    names = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    return {f"OPENCODE_DISABLE_{name}": "1" for name in names}


# -- Gemini CLI


def _gemini() -> list[str]:
    return [node(), str(packaged("@google", "gemini-cli", "bundle", "gemini.js"))]


def _configure_gemini(place: Place) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "model": {"name": "gemini-2.5-flash"},
    }
    file = place.home / ".gemini" / "settings.json"
    _write(file, json.dumps(settings))
    _install("gemini-cli", place)
    settings = json.loads(file.read_text())
    settings["mcpServers"]["toolgate"]["timeout"] = CALL * 1000
    file.write_text(json.dumps(settings))
    return {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": place.model, "GEMINI_CLI_NO_RELAUNCH": "true"}


AGENTS: dict[str, Agent] = {
    "claude-code": Agent(
        "Claude Code",
        "@anthropic-ai/claude-code",
        _claude,
        ("-p", PROMPT, "--allowedTools", "mcp__toolgate"),
        _configure_claude,
        login=("mcp", "login", "toolgate"),
    ),
    "codex": Agent(
        "Codex",
        "@openai/codex",
        _codex,
        ("exec", "--skip-git-repo-check", PROMPT),
        _configure_codex,
        login=("mcp", "login", "toolgate"),
    ),
    "opencode": Agent(
        "opencode",
        "opencode-linux-x64",
        _opencode,
        ("run", PROMPT),
        _configure_opencode,
        login=("mcp", "auth", "toolgate"),
    ),
    "gemini-cli": Agent(
        "Gemini CLI",
        "@google/gemini-cli",
        _gemini,
        ("-p", PROMPT, "--yolo"),
        _configure_gemini,
        login=("-i", "/mcp auth toolgate"),
        asks="Do you want to continue?",
        tokens=".gemini/mcp-oauth-tokens*",
    ),
}
