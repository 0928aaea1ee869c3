"""No request blocks the event loop for long, since all other clients wait meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.watchdog import watched_output, worst
from tests.watchdog.watch import Ask, Watched, opened_sse, watched_site
from toolgate.server.app import builtin_tools
from toolgate.server.app.app import App
from toolgate.server.config import load

TOOLS = {tool.name: tool for tool in builtin_tools.TOOLS}
OTHERS = {  # routes that the tests' own server lacks
    "long and unknown": b"/" + worst.filled(b"a/", worst.HEAD),
    "long and encoded": b"/" + worst.filled(b"%C3%A9", worst.HEAD),
    "long and upwards": b"/" + worst.filled(b"../", worst.HEAD),
}


# What `make test` tries: of each kind of reading one, the longest. The soak tries all.
BRIEF_ROUTES = (
    *("/mcp", "/sse", "/", "/token", "/introspect", "/register", "/login"),
    *("/authorize", "/mounts/tools", "/mounts/callback"),
)
BRIEF_METHODS = (
    *("initialize", "ping", "tools/call", "tools/list", "resources/read", "completion/complete", "logging/setLevel"),
    *("tasks/update", "subscriptions/listen", "events/poll", "events/subscribe", "skills/get"),
)
BRIEF_BODIES = (
    *("objects", "deep ones", "keys", "strings", "extreme numbers", "a digit", "escapes", "a picture", "no UTF-8"),
    *("surrogates", "surrogate, as large as may be", "an id of marks", "a cancellation", "a wrong message"),
    *("ids at the end", "a batch", "a batch of reads", "a batch of calls"),
)
BRIEF_TOOLS = ("Bash", "TaskManager", "AskUserQuestion", "InvokeSkill")
BRIEF_OUTPUT = ("returns on one line", "escapes", "states", "marks")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched_site(tmp_path_factory.mktemp("watched")) as made:
        yield made


def test_every_route_has_its_worst_case(watched: Watched) -> None:
    paths = {path.rstrip("/") or "/" for path in watched.routes}
    plain = {path for path in paths if not (path.startswith(worst.DOCUMENTS) or path.endswith(worst.FILES))}
    assert (plain - set(worst.ROUTES), set(worst.ROUTES) - plain) == (set(), set())


@pytest.mark.brief(*(f"0-{path}" for path in BRIEF_ROUTES))
@pytest.mark.parametrize("path", worst.ROUTES)
@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_no_head_and_no_form_holds_the_loop(watched: Watched, path: str, turn: int) -> None:
    assert watched.too_long(worst.heads(path, turn)) == []
    assert watched.too_long(worst.ROUTES[path](watched)) == []


def test_no_document_or_file_holds_the_loop(watched: Watched) -> None:
    others = [path for path in watched.routes if path not in worst.ROUTES]
    asks = [Ask(f"{method} {path}", method, path.encode()) for path in others for method in ("GET", "POST", "OPTIONS")]
    asks += [Ask(name, "GET", path) for name, path in OTHERS.items()]
    assert watched.too_long(asks) == []


def test_every_method_has_its_worst_case(tmp_path: Path) -> None:
    app = App(load.load({"state": str(tmp_path)}, {"HOME": str(tmp_path)}))
    app.host.store().close()
    assert set(app.host.dispatcher()._methods) == set(worst.MESSAGES)


@pytest.mark.brief(*(f"full-{method}" for method in BRIEF_METHODS))
@pytest.mark.parametrize("method", worst.MESSAGES)
@pytest.mark.parametrize("who", ["full", pytest.param("web", marks=pytest.mark.soak)])
def test_no_method_holds_the_loop(watched: Watched, method: str, who: str) -> None:
    assert watched.too_long(worst.messages(watched, method, who)) == []


@pytest.mark.brief(*BRIEF_BODIES)
@pytest.mark.parametrize("kind", worst.BODIES)
def test_no_body_holds_the_loop(watched: Watched, kind: str) -> None:
    assert watched.too_long([worst.in_session(watched, "full", worst.BODIES[kind](), kind, "2025-03-26")]) == []


@pytest.mark.soak
@pytest.mark.parametrize("kind", worst.BODIES)
def test_no_body_holds_the_loop_over_sse(watched: Watched, kind: str) -> None:
    connection, path = opened_sse(watched, "full")
    token = (b"authorization", b"Bearer " + watched.tokens["full"].encode())
    with connection:
        asks = [Ask(f"sse {kind}", "POST", path.encode(), (*worst.POSTED, token), worst.BODIES[kind]())]
        assert watched.too_long(asks) == []


def test_every_tool_has_its_worst_case() -> None:
    assert set(TOOLS) == set(worst.VALID_ARGUMENTS)


@pytest.mark.brief(*BRIEF_TOOLS)
@pytest.mark.parametrize("name", worst.VALID_ARGUMENTS)
def test_no_arguments_of_a_tool_hold_the_loop(watched: Watched, name: str) -> None:
    wrong = worst.wrong(TOOLS[name].input, name)
    calls = [worst.message("tools/call", {"name": name, "arguments": given}) for given in wrong]
    asks = [worst.in_session(watched, "full", call, f"{name} {worst.shown(call['params'])}") for call in calls]
    assert watched.too_long(asks) == []


FILES = {"bytes": bytes(range(256)) * 2**15, "text": b"\n" * 2**23, "marks": "\u0300".encode() * 2**22}


@pytest.mark.parametrize("kind", FILES)
def test_no_large_answer_holds_the_loop(watched: Watched, kind: str) -> None:
    work = watched.folder / "work"
    (work / kind).write_bytes(FILES[kind])
    params = {"uri": f"file://{work / kind}"}
    asked = worst.in_session(watched, "full", worst.message("resources/read", params), kind)
    stream = Ask(
        f"{kind} as a stream", "POST", b"/mcp", ((b"accept", b"text/event-stream"), *asked.headers), asked.body
    )
    assert len(watched.send(asked)) > 2**23
    assert watched.too_long([asked, stream]) == []


@pytest.mark.brief(*BRIEF_OUTPUT)
@pytest.mark.parametrize("kind", watched_output.OUTPUT)
def test_no_output_holds_the_loop_however_many_patterns_watch_it(watched: Watched, kind: str) -> None:
    for pattern in watched_output.PATTERNS:
        watched_output.poll(watched, pattern, None)
    _, cursor = watched_output.poll(watched, "ready", None)

    def write_and_read() -> None:
        number = watched_output.write(watched, kind)
        assert eventually(is_ready)
        watched_output.read(watched, number)

    def is_ready() -> bool:
        nonlocal cursor
        found, cursor = watched_output.poll(watched, "ready", cursor)
        return found > 0

    assert watched.describe_block(kind, write_and_read) is None


def test_a_name_to_sign_in_with_does_not_hold_the_loop(watched: Watched) -> None:
    browser = watched.target.browser()
    csrf = browser.get("/login").field("csrf")
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    body = f"csrf={csrf}&question=&password=x&username={worst.COMBINING}".encode()
    asks = [Ask("a name", "POST", b"/login", (*worst.FORMED, (b"cookie", cookie.encode())), body)]
    assert watched.too_long(asks) == []


def test_the_watch_sees_what_holds_the_loop(watched: Watched) -> None:
    numbers = worst.wrapped(worst.array(b"5e-324,", worst.STRUCTURE))
    ask = worst.in_session(watched, "full", numbers, "numbers")
    seconds, _ = watched.measure(lambda: watched.send(ask))
    assert seconds > 0.005
