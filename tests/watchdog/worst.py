"""The worst request to every route, every method and every tool. One without a row fails the tests."""

import base64
import functools
import itertools
import json
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from tests.clients.raw_client import STATELESS
from tests.server.auth.minted_tokens import ENVELOPE
from tests.watchdog.watch import Ask, Heads, Watched

HEAD = 60_000  # bytes of one header: all together may have 64 KiB
FORM = 64 * 1024 - 600  # bytes of a form's one field
BODY = 16 * 2**20 - 4_096
POSTED: Heads = ((b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream"))
FORMED: Heads = ((b"content-type", b"application/x-www-form-urlencoded"), (b"accept", b"text/html"))
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "ODD")


def filled(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


def spread(names: Callable[[int], bytes], size: int) -> Heads:
    """Return as many headers as fit in `size` bytes."""
    count = size // (len(names(10_000)) + 5)
    return tuple((names(number), b"1") for number in range(count))


# -- heads: each is sent to each route

JWT = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"' + filled(b"a", 30_000) + b'"}').rstrip(b"=")
NESTED = base64.urlsafe_b64encode(filled(b"[", 20_000) + filled(b"]", 20_000)).rstrip(b"=")
COMBINING = "a" + "\u0300" * 6_000 + "\u0316" * 6_000

HEADS: Mapping[str, Heads] = {
    "nothing": (),
    "many headers": spread(lambda number: b"x-%d" % number, HEAD),
    "many mcp-param": spread(lambda number: b"mcp-param-%d" % number, HEAD),
    "one name": ((b"accept", b"a"),) * 4_000,
    "cookies": ((b"cookie", filled(b"a=b; ", HEAD)),),
    "cookie lines": ((b"cookie", b"a=b"),) * 4_000,
    "one cookie": ((b"cookie", b"toolgate-0-session=" + filled(b"=;", HEAD)),),
    "bearer": ((b"authorization", b"Bearer " + filled(b"a", HEAD)),),
    "bearer dots": ((b"authorization", b"Bearer " + filled(b".", HEAD)),),
    "jwt": ((b"authorization", b"Bearer " + JWT + b"." + JWT[:10_000] + b".AAAA"),),
    "nested jwt": ((b"authorization", b"Bearer " + NESTED + b".e30.AAAA"),),
    "basic": ((b"authorization", b"Basic " + base64.b64encode(filled("é:%41".encode(), HEAD * 3 // 4))),),
    "basic odd": ((b"authorization", b"Basic " + filled(b"=", HEAD)),),
    "accept": ((b"accept", filled(b'text/html;q=0.1,a/b;x="', HEAD)),),
    "accept words": ((b"accept", filled(b",;=", HEAD)),),
    "origin": ((b"origin", b"http://" + filled(b"a:", HEAD)),),
    "host": ((b"host", filled(b"a:1", HEAD)),),
    "forwarded": ((b"x-forwarded-for", filled(b"::1, ", HEAD)), (b"x-forwarded-proto", b"https")),
    "rfc 7239": ((b"forwarded", filled(b'for="[::1]";by=_a, ', HEAD)),),
    "last event": ((b"last-event-id", filled(b"-", HEAD)), (b"mcp-session-id", b"none")),
    "session": ((b"mcp-session-id", filled(b"\xe9", HEAD)),),
    "version": ((b"mcp-protocol-version", filled(b"2026-", HEAD)),),
    "content type": ((b"content-type", b"application/json;" + filled(b" a=b;", HEAD)),),
    "multipart": ((b"content-type", b"multipart/form-data; boundary=" + filled(b"-", HEAD)),),
    "encoding": ((b"content-encoding", filled(b"gzip, ", HEAD)),),
    "length": ((b"content-length", filled(b"9", 5_000)),),
    "preflight": ((b"origin", b"http://127.0.0.1"), (b"access-control-request-headers", filled(b"mcp-param-a,", HEAD))),
    "language": ((b"accept-language", filled(b"de;q=0.1,", HEAD)),),
    "if match": ((b"if-none-match", filled(b'"a",', HEAD)), (b"range", filled(b"bytes=0-1,", 2_000))),
}
QUERIES: Mapping[str, bytes] = {
    "many": filled(b"a=b&", HEAD),
    "other separators": filled(b";", HEAD),
    "encoded": b"a=" + filled(b"%C3%A9", HEAD),
    "pluses": b"a=" + filled(b"+", HEAD),
    "percents": filled(b"%", HEAD),
    "combining": b"client_id=" + b"".join(b"%%%02X" % byte for byte in COMBINING.encode())[:HEAD],
    "a url": b"client_id=https://" + filled(b"a.", 30_000) + b"example/c&redirect_uri=http://[" + filled(b":", 20_000),
    "a host": b"client_id=https://" + filled(b"%C3%9F", 50_000) + b".example/c.json",
    "scopes": b"client_id=x&scope=" + filled(b"a+", HEAD),
    "tokens": filled(b"access%5Ftoken&", HEAD),
    "session": b"session_id=" + filled(b"a", HEAD),
    "state": b"code=x&iss=https%3A%2F%2Fa&state=" + filled(b"%F0%9F%98%80", 50_000),
}


def heads(path: str, turn: int) -> Iterator[Ask]:
    """Yield requests to any route, by any method, before the caller is known. Of GET and POST each head comes with one:
    the routes take turns, and turn 1 has the other."""
    target = path.encode()
    for method in METHODS:
        yield Ask(f"{method} {path}", method, target)
    methods = itertools.islice(itertools.cycle(("GET", "POST")), [*ROUTES].index(path) + turn, None)
    for (name, headers), method in zip(HEADS.items(), methods, strict=False):
        yield Ask(f"{method} {path}, {name}", method, target, headers)
    for (name, query), method in zip(QUERIES.items(), methods, strict=False):
        yield Ask(f"{method} {path}, query {name}", method, target + b"?" + query)


# -- bodies, by route


def forms(path: str, *fields: str) -> Iterator[Ask]:
    """Yield forms at their limit: each field long in each way, and malformed ones."""
    for name, body in {
        "fields": filled(b"a=b&", FORM),
        "empty fields": filled(b"&", FORM),
        "encoded": b"a=" + filled(b"%C3%A9", FORM),
        "broken": filled(b"%", FORM),
        "no utf-8": b"a=" + filled(b"\xff", FORM),
    }.items():
        yield Ask(f"{path}, form {name}", "POST", path.encode(), FORMED, body)
    for field in fields:
        for name, value in {
            "plain": filled(b"a", FORM),
            "raw marks": COMBINING.encode() + filled("\u0323".encode(), FORM - 25_000),
            "spaces": filled(b"+", FORM),
            "hosts": b"https://" + filled("ß.".encode(), FORM - 10),
            "dots": filled(b".", FORM),
            "digits": filled(b"9", FORM),
            "jwt": JWT + b"." + NESTED[:10_000] + b".AAAA",
        }.items():
            yield Ask(f"{path}, {field}: {name}", "POST", path.encode(), FORMED, field.encode() + b"=" + value)


def signed_in(watched: Watched, asks: Iterator[Ask], page: str) -> Iterator[Ask]:
    """Yield the same requests signed in as ada, with her cookies and the page's hidden fields."""
    ada = watched.target.ada
    assert ada is not None
    got = ada.get(page, accept="text/html")
    cookie = "; ".join(f"{name}={value}" for name, value in ada.cookies.items()).encode()
    csrf = got.field("csrf").encode() if 'name="csrf"' in got.text else b""
    for ask in asks:
        body = b"csrf=" + csrf + b"&" + ask.body if ask.body else b""
        yield Ask(f"ada: {ask.name}", ask.method, ask.path, (*ask.headers, (b"cookie", cookie)), body)


def tokens(watched: Watched) -> Iterator[Ask]:
    known = ("grant_type=authorization_code&client_id=" + watched.target.client + "&").encode()
    for ask in forms("/token", "client_id", "code", "code_verifier", "redirect_uri", "scope", "resource"):
        yield ask
        yield Ask(f"{ask.name}, of a client", "POST", ask.path, FORMED, known + ask.body[: FORM - len(known)])
    kinds = ("refresh_token", "client_credentials", "urn:ietf:params:oauth:grant-type:jwt-bearer")
    for kind in kinds:
        given = f"grant_type={kind}&client_id={watched.target.client}&".encode()
        for name in ("refresh_token", "assertion", "client_assertion", "scope"):
            yield Ask(
                f"/token {kind} {name}", "POST", b"/token", FORMED, given + name.encode() + b"=" + JWT + b".e30.A"
            )
    many = b"&".join(b"resource=https://%d" % number for number in range(90))
    yield Ask("/token resources", "POST", b"/token", FORMED, known + many)


def registrations(_watched: Watched) -> Iterator[Ask]:
    bodies = {
        "deep": filled(b"[", FORM),
        "deep and closed": b'{"client_name":' + filled(b"[", 30_000) + filled(b"]", 30_000) + b"}",
        "objects": b'{"a":[' + filled(b"{},", FORM) + b"0]}",
        "extremes": b'{"a":[' + filled(b"5e-324,", FORM) + b"0]}",
        "surrogates": b'{"client_name":"' + filled(b"\\ud800", FORM) + b'"}',
        "marks": json.dumps({"client_name": COMBINING, "redirect_uris": ["https://a.example/"]}).encode()[:FORM],
        "raw marks": json.dumps({"client_name": COMBINING * 2}, ensure_ascii=False).encode(),
        "uris": json.dumps({"redirect_uris": [f"https://{number}.example/" for number in range(2_000)]}).encode(),
        "a uri": json.dumps({"redirect_uris": ["https://" + "a." * 30_000]}).encode(),
        "a host": json.dumps({"redirect_uris": ["https://" + "ß" * 30_000 + ".example/"]}, ensure_ascii=False).encode(),
        "hosts": json.dumps({"redirect_uris": ["https://ß.é/" for _ in range(3_000)]}, ensure_ascii=False).encode(),
        "scopes": json.dumps({"scope": "a " * 30_000, "redirect_uris": ["https://a.example/"]}).encode(),
        "keys": json.dumps({"jwks": {"keys": [{"kty": "RSA", "n": "A" * 40_000, "e": "AQAB"}]}}).encode(),
    }
    for name, body in bodies.items():
        yield Ask(f"/register {name}", "POST", b"/register", POSTED, body[: FORM + 500])


def home(watched: Watched) -> Iterator[Ask]:
    fields = [b"accept=1&" + filled(b"a%C3%A9=b&", 900_000), b"stop=" + filled("\u0300".encode(), 900_000)]
    asks = [Ask(f"/ with {body[:9]!r}", "POST", b"/", FORMED, body) for body in fields]
    asks += [Ask("/ many fields", "POST", b"/", FORMED, filled(b"a=b&", 900_000))]
    asks += [Ask("/ encoded", "POST", b"/", FORMED, b"accept=" + filled(b"%C3%A9", 900_000))]
    yield from asks
    yield from signed_in(watched, iter(asks), "/")


def nothing(_watched: Watched) -> Iterator[Ask]:
    """Yield nothing: these routes never read bodies."""
    return iter(())


def form_of(path: str, page: str, *fields: str) -> Callable[[Watched], Iterator[Ask]]:
    def asks(watched: Watched) -> Iterator[Ask]:
        yield from forms(path, *fields)
        yield from signed_in(watched, forms(path, *fields), page)

    return asks


def choices(watched: Watched) -> Iterator[Ask]:
    path = "/mounts/tools"
    yield from form_of(path, "/account", "csrf", "name", "page", "shown", "on")(watched)
    many = filled(b"shown=a&on=a&", FORM)
    yield from signed_in(watched, iter([Ask(f"{path}, many tools", "POST", path.encode(), FORMED, many)]), "/account")


def elsewhere(_watched: Watched) -> Iterator[Ask]:
    """Yield nothing: the table of methods has JSON bodies."""
    for name, body in {"nothing of JSON": filled(b"x", BODY), "too much": filled(b"x", BODY + 8_192)}.items():
        for path in (b"/mcp", b"/messages?session_id=none"):
            yield Ask(f"{path.decode()} {name}", "POST", path, POSTED, body)


ROUTES: Mapping[str, Callable[[Watched], Iterator[Ask]]] = {
    "/mcp": elsewhere,
    "/sse": nothing,
    "/messages": nothing,
    "/health": nothing,
    "/ready": nothing,
    "/metrics": nothing,
    "/": home,
    "/events": nothing,
    "/token": tokens,
    "/revoke": lambda _: forms("/revoke", "token", "token_type_hint", "client_id", "client_secret", "client_assertion"),
    "/introspect": lambda _: forms("/introspect", "token", "client_id", "client_assertion"),
    "/register": registrations,
    "/login": form_of("/login", "/login", "csrf", "question", "password", "code"),
    "/consent": form_of("/consent", "/account", "csrf", "question", "decision", "scope", "via"),
    "/account": form_of("/account", "/account", "csrf", "grant", "browser", "forget"),
    "/logout": form_of("/logout", "/logout", "csrf"),
    "/mounts/connect": form_of("/mounts/connect", "/account", "csrf", "name"),
    "/mounts/callback": nothing,
    "/mounts/tools": choices,
    "/mounts/people": form_of("/mounts/people", "/account", "csrf", "end"),
    "/mounts/codes": nothing,
    "/authorize": nothing,
    "/callback": nothing,
    "/jwks": nothing,
}
DOCUMENTS = ("/.well-known/", "/mcp/.well-known/", "/sse/.well-known/")  # and files: each has one answer
FILES = (".css", ".ico", ".js", ".json", ".svg")


# -- messages, by method


@functools.cache
def long(unit: str, size: int = BODY - 2_048) -> str:
    return unit * (size // len(json.dumps(unit, ensure_ascii=False).encode()[1:-1]))


def strings() -> list[str]:
    """Return texts of the maximum length that take longest."""
    return [long("\u0300"), long("\n")]


URI = "file:///N/" + "%C3%A9" * 1_350


def uri_worst() -> list[dict[str, Any]]:
    return [{"uri": uri} for uri in (URI, "skill://a/" + URI[10:], "zzz" + URI, "file:///" + "a/" * 4_000, *strings())]


def listen_worst() -> list[dict[str, Any]]:
    lists = [
        [URI] * 16,
        [f"{URI[:-8]}{number:08}" for number in range(16)],
        [f"file:///{number}" + "%C3%A9" * 16 for number in range(1_000)],
        [f"task://{number}" for number in range(1_000)],
        [f"bg://{number}/output" for number in range(1_000)],
        strings()[:1],
        [""] * 60_000,
    ]
    asked = [{"notifications": {"resourceSubscriptions": uris}} for uris in lists]
    tasks = [["t-" + "a" * 200] * 1_000, [f"{number}" for number in range(60_000)], strings()[1:2]]
    asked += [{"notifications": {"taskIds": ids}} for ids in tasks]  # type: ignore[dict-item]
    return [*asked, {"notifications": {str(number): True for number in range(30_000)}}]  # type: ignore[dict-item]


def each(name: str, *more: Any) -> list[dict[str, Any]]:
    return [{name: value} for value in (*strings(), *more)]


def arguments(method_field: str, name: str) -> list[dict[str, Any]]:
    large = {str(number): "" for number in range(30_000)}
    return [{method_field: name, "arguments": {"a": text}} for text in strings()] + [
        {method_field: name, "arguments": large}
    ]


def completions() -> list[dict[str, Any]]:
    template = {"type": "ref/resource", "uri": "file:///{+path}"}
    typed = {"name": "path", "value": "a/" * 4_000}
    return [
        {"ref": template, "argument": typed},
        {"ref": {"type": "ref/resource", "uri": URI}, "argument": typed},
        {"ref": {"type": "ref/resource", "uri": long("\u0300")}, "argument": typed},
        {"ref": {"type": "ref/prompt", "name": long("\u0300")}, "argument": typed},
        {"ref": template, "argument": {"name": long("\u0300"), "value": ""}},
        {"ref": template, "argument": {"name": "path", "value": long("\u0300")}},
        {"ref": template, "argument": typed, "context": {"arguments": {"a": long("\u0300")}}},
        {"ref": template, "argument": typed, "context": {"arguments": {str(n): "" for n in range(30_000)}}},
    ]


def events_worst() -> list[dict[str, Any]]:
    asked = [{"name": "command.ended", "cursor": text} for text in strings()]
    return [*each("name"), *arguments("name", "command.ended"), *asked]


def poll_worst() -> list[dict[str, Any]]:
    patterns = ["*a" * 128, "?" * 256, long("\u0300")]
    watched = [{"name": "command.output", "arguments": {"pattern": text}} for text in patterns]
    return [*events_worst(), *watched]


def subscribe_worst() -> list[dict[str, Any]]:
    named = {"name": "command.ended", "arguments": {}}
    urls = [{**named, "delivery": {"url": f"https://{text}", "secret": f"whsec_{text}"}} for text in strings()]
    return [*urls, *arguments("name", "command.ended")]


MESSAGES: Mapping[str, Callable[[], list[dict[str, Any]]]] = {
    "initialize": lambda: (
        [{"protocolVersion": text, "capabilities": {}, "clientInfo": {"name": text}} for text in strings()[:2]]
        + [{"protocolVersion": "2025-11-25", "capabilities": {str(n): {} for n in range(30_000)}, "clientInfo": {}}]
    ),
    "ping": lambda: [{"a": [{}] * 60_000}, {str(number): 0 for number in range(30_000)}, *each("_meta", {"a": "b"})],
    "server/discover": lambda: each("a"),
    "tools/list": lambda: each("cursor"),
    "tools/call": lambda: [*each("name"), *arguments("name", "Bash")],
    "prompts/list": lambda: each("cursor"),
    "prompts/get": lambda: [*each("name"), *arguments("name", "greeting")],
    "resources/list": lambda: each("cursor"),
    "resources/templates/list": lambda: each("cursor"),
    "resources/read": uri_worst,
    "resources/subscribe": uri_worst,
    "resources/unsubscribe": uri_worst,
    "resources/directory/read": uri_worst,
    "completion/complete": completions,
    "logging/setLevel": lambda: each("level", ["info"] * 30_000),
    "tasks/get": lambda: each("taskId"),
    "tasks/update": lambda: [
        *({"taskId": text, "inputResponses": {}} for text in strings()),
        {"taskId": "x", "inputResponses": {str(number): {} for number in range(30_000)}},
    ],
    "tasks/cancel": lambda: each("taskId"),
    "subscriptions/listen": listen_worst,
    "events/list": lambda: each("cursor"),
    "events/poll": poll_worst,
    "events/stream": events_worst,
    "events/subscribe": subscribe_worst,
    "events/unsubscribe": subscribe_worst,
    "toolgate/events/test": events_worst,
    "skills/list": lambda: each("cursor"),
    "skills/get": uri_worst,
}


def in_session(watched: Watched, who: str, message: Any, name: str, revision: str = "2025-11-25") -> Ask:
    headers = [(b"authorization", b"Bearer " + watched.tokens[who].encode())]
    if not (isinstance(message, dict) and message["method"] == "initialize"):
        headers.append((b"mcp-session-id", watched.session(who, revision).encode()))
    body = message if isinstance(message, bytes) else msgspec.json.encode(message)
    return Ask(f"{who} {name}", "POST", b"/mcp", (*POSTED, *headers), body)


def stateless(watched: Watched, who: str, method: str, params: dict[str, Any], name: str) -> Ask:
    """Return a stateless request; a mirrored header is cut to its maximum."""
    meta = {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}
    odd = params.get("_meta")
    told = {**params, "_meta": {**meta, "odd": odd} if odd is not None else meta}
    headers = [
        (b"authorization", b"Bearer " + watched.tokens[who].encode()),
        (b"mcp-protocol-version", STATELESS.encode()),
        (b"mcp-method", method.encode()),
    ]
    field = MIRRORED.get(method)
    if field is not None and isinstance(params.get(field), str):
        told[field] = params[field][:9_000] if params[field].isascii() else params[field][:2_000]
        headers.append((b"mcp-name", named(told[field])))
    body = msgspec.json.encode(message(method, told))
    endless = method == "subscriptions/listen"
    return Ask(f"{who} {name}", "POST", b"/mcp", (*POSTED, *headers), body, endless)


TASKS = "io.modelcontextprotocol/tasks"
MIRRORED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
MIRRORED |= dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")


def named(value: str) -> bytes:
    plain = value.isascii() and value.isprintable()
    return value.encode() if plain else b"=?base64?" + base64.b64encode(value.encode()) + b"?="


def message(method: str, params: Any, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def shown(value: Any) -> str:
    """Return the beginning of a value. Writing all of it takes longer than the request."""
    shortened = reprlib.Repr()
    shortened.maxother = shortened.maxstring = shortened.maxlong = 40
    return shortened.repr(value)[:160]


def messages(watched: Watched, method: str, who: str) -> Iterator[Ask]:
    for number, params in enumerate(MESSAGES[method]()):
        name = f"{method} {shown(params)}"
        if number % 2:
            yield in_session(watched, who, message(method, params), name)
        else:
            yield stateless(watched, who, method, params, f"{name} without a session")


# -- malformed messages, and batches


def wrapped(value: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + value + b"}}"


def array(unit: bytes, size: int, last: bytes = b"0") -> bytes:
    return b"[" + filled(unit, size - 200) + last + b"]"


STRUCTURE = 256 * 1024 - 400
LENIENT = 2**20 - 400

BODIES: Mapping[str, Callable[[], bytes]] = {
    "objects": lambda: wrapped(array(b"{},", BODY)),
    "objects, as many as may be": lambda: wrapped(array(b"{},", STRUCTURE)),
    "arrays": lambda: wrapped(array(b"[],", STRUCTURE)),
    "deep": lambda: wrapped(filled(b"[", BODY // 2) + filled(b"]", BODY // 2)),
    "deep ones": lambda: wrapped(array(filled(b"[", 400) + filled(b"]", 400) + b",", STRUCTURE)),
    "keys": lambda: wrapped(b"{" + b",".join(b'"%0150x":0' % n for n in range(STRUCTURE // 3)) + b"}"),
    "strings": lambda: wrapped(array(b'"' + filled(b"a", 90) + b'",', BODY)),
    "long strings": lambda: wrapped(array(b'"' + filled(b"a", 180) + b'",', BODY)),
    "numbers": lambda: wrapped(array(b"1.234567890123456789012345678901e-30,", STRUCTURE)),
    "long numbers": lambda: wrapped(array(b"0." + filled(b"0", 307) + b"17976931348623157,", STRUCTURE)),
    "extreme numbers": lambda: wrapped(array(b"5e-324,", STRUCTURE)),
    "extreme numbers, few bytes": lambda: wrapped(array(b"1e299,", 16_000)),
    "a digit": lambda: wrapped(filled(b"9", BODY)),
    "too large numbers": lambda: wrapped(array(b"1e999,", BODY)),
    "escapes": lambda: wrapped(b'"' + filled(b"\\u00e9", BODY - 200) + b'"'),
    "quotes": lambda: wrapped(b'"' + filled(b'\\"', BODY - 200) + b'"'),
    "backslashes": lambda: wrapped(b'"' + filled(b"\\\\", BODY - 200) + b'"'),
    "JSON in a string": lambda: wrapped(b'"' + filled(b'{\\"a\\": \\"b\\", \\"c\\": 1},\\n', BODY - 200) + b'"'),
    "a picture": lambda: wrapped(b'"' + base64.b64encode(bytes(range(256)) * (BODY * 3 // 4 // 256 - 40)) + b'"'),
    "surrogate": lambda: wrapped(array(b"{},", BODY, b'"\\ud800"')),
    "surrogate, large": lambda: wrapped(b'"' + filled(b"a", BODY - 300) + b'\\ud800"'),
    "surrogate, as large as may be": lambda: wrapped(
        array(b"{},", 32_000, b'"\\ud800' + filled(b"\\u00e9", LENIENT - 33_000) + b'"')
    ),
    "surrogates": lambda: wrapped(b'"' + filled(b"\\ud800", LENIENT - 200) + b'"'),
    "no UTF-8": lambda: wrapped(b'"' + filled(b"a", BODY - 300) + b'\xff"'),
    "an id": lambda: b'{"jsonrpc":"2.0","id":"' + filled(b"a", BODY - 300) + b'","method":"ping"}',
    "an id of marks": lambda: (
        b'{"jsonrpc":"2.0","id":"' + filled("\u0300".encode(), BODY - 300) + b'","method":"ping"}'
    ),
    "a method": lambda: b'{"jsonrpc":"2.0","id":1,"method":"' + filled("\u0300".encode(), BODY - 300) + b'"}',
    "a version": lambda: b'{"jsonrpc":"' + filled(b"a", BODY - 300) + b'","id":1,"method":"ping"}',
    "a result": lambda: b'{"jsonrpc":"2.0","id":1,"result":"' + filled(b"a", BODY - 300) + b'"}',
    "an error": lambda: (
        b'{"jsonrpc":"2.0","id":1,"error":{"message":"' + filled("\u0300".encode(), BODY - 300) + b'"}}'
    ),
    "a notification": lambda: b'{"jsonrpc":"2.0","method":"' + filled(b"a", BODY - 300) + b'"}',
    "a cancellation": lambda: (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"'
        + filled(b"a", BODY - 300)
        + b'"}}'
    ),
    "a wrong message": lambda: b'{"jsonrpc":"2.0","id":[],"x":' + array(b"{},", STRUCTURE) + b"}",
    "spaces": lambda: wrapped(filled(b" ", BODY - 300) + b"0"),
    "literals": lambda: wrapped(array(b"true,", STRUCTURE * 5)),
    "decimals": lambda: wrapped(array(b"1.5,", STRUCTURE)),
    "short strings": lambda: wrapped(array('"éb",'.encode(), STRUCTURE * 5)),
    "ids": lambda: b"{" + filled(b'"id":1,', STRUCTURE) + b'"x":NaN}',
    "ids at the end": lambda: b'{"x":NaN,' + filled(b'"id":"a,",', STRUCTURE) + b'"y":1,}',
    "a batch": lambda: array(b"{},", STRUCTURE),
    "a batch of strings": lambda: b"[" + b",".join([b'"' + filled(b"a", 60_000) + b'"'] * 250) + b"]",
    "a batch of requests": lambda: json.dumps([message("ping", {"a": [{}] * 220}, n) for n in range(256)]).encode(),
    "a batch of reads": lambda: json.dumps([message("resources/read", {"uri": URI}, n) for n in range(256)]).encode(),
    "a batch of subscriptions": lambda: json.dumps(
        [message("resources/subscribe", {"uri": f"{URI[:-5]}{n:05}"}, n) for n in range(256)]
    ).encode(),
    "a batch of completions": lambda: json.dumps(
        [message("completion/complete", completions()[0], n) for n in range(40)]
    ).encode(),
    "a batch of calls": lambda: json.dumps(
        [message("tools/call", {"name": "TaskManager", "arguments": {"action": "list"}}, n) for n in range(256)]
    ).encode(),
    "a batch of unknown tools": lambda: json.dumps(
        [message("tools/call", {"name": long("\u0300", 60_000)}, n) for n in range(256)], ensure_ascii=False
    ).encode(),
}


# -- tools

HUGE = msgspec.Raw(str(10**300).encode())  # msgspec encodes no such number


def wrong(schema: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield arguments at their limits, for each parameter in turn and of every type; then unknown ones."""
    for parameter in schema.get("properties", {}):
        for value in (long("\n"), long("%", 2**20), [{"a": 1}] * 25_000, {str(n): 0 for n in range(20_000)}, HUGE):
            yield {**VALID_ARGUMENTS[name], parameter: value}
        for value in (long("[1,", 700_000), f"[{long('1,', 260_000)}1]", ["1"] * 60_000, "9" * 4_000):
            yield {**VALID_ARGUMENTS[name], parameter: value}
    yield {**VALID_ARGUMENTS[name], **{f"odd-{number}": 0 for number in range(15_000)}}
    yield {**VALID_ARGUMENTS[name], long("\u0300"): 0}


PICTURE = {"question": "a?", "header": "a", "options": [{"label": "a", "description": "b"}] * 3, "multiSelect": False}
VALID_ARGUMENTS: Mapping[str, dict[str, Any]] = {  # what goes with a wrong one
    "Bash": {"command": "true"},
    "ReadImage": {"file_path": "none.png"},
    "ReadDocs": {"url": "https://127.0.0.1/"},
    "WebSearch": {"query": ""},
    "TaskManager": {"action": "list"},
    "PlanMode": {"action": "exit"},
    "AskUserQuestion": {"questions": [PICTURE]},
    "InvokeSkill": {"skill": "none"},
    "BackgroundBash": {"command": "true"},
    "ReadBgOutput": {"task_id": 1},
    "ListBgTasks": {},
    "KillBgTask": {"task_id": 1},
    "SetCallback": {"action": "list"},
}
