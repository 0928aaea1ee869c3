"""A small MCP server to mount, which does what a test asks of it: `python far_server.py ERA [HTTP-PORT-FILE]`.

ERA is "legacy", "modern", "both", or a revision with sessions. With a file it serves Streamable HTTP on a free port,
whose number it writes there.
"""

import json
import os
import queue
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

MODERN, LEGACY = "2026-07-28", "2025-11-25"
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ODD_RESULT = (  # what a decoder would change: numbers, the order of keys, fields that nobody knows
    '{"zebra":1.0,"content":[{"type":"text","text":"odd","strange":9223372036854775808,"_meta":{"b":null,"a":1e2}}],'
    '"structuredContent":{"z":1.10,"a":[],"n":null},"isError":false}'
)
JWT = re.compile(r"eyJ[\w-]+\.eyJ[\w-]+\.")
MIRRORED = {  # a schema whose arguments headers repeat
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "deep": {"type": "object", "properties": {"count": {"type": "integer", "x-mcp-header": "Count"}}},
    },
}
QUIET = ("headers", "echo", "odd", "error", "count", "progress", "log", "slow", "later", "env", "pid", "grow", "touch")
ASKING = ("ask", "sample", "roots")
TASKS = (
    "long",
    "tasks_begun",
    "tasks_ended",
)  # with FAR_TASKS in the environment: they run as tasks only, in the sessions era
NAMES = (*QUIET, *ASKING, "exit", "rubbish", "flood", "wrong_id", "deep", "large")

Emit = Callable[[Any], None]


class RpcFault(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, **({} if data is None else {"data": data})}


def refuse_tokens(text: str) -> None:
    """End this server at a token that a client of Toolgate sent, so that the test fails: none may come this far."""
    if JWT.search(text):
        print("a token of a client came to a mounted server", file=sys.stderr, flush=True)
        os._exit(70)


class FarServer:
    """The methods; each request is answered in a thread of its own."""

    def __init__(self, era: str) -> None:
        self.era = era
        self.calls = 0
        self.headers: dict[str, str] = {}  # of the last request over HTTP
        self.grown = 0
        self.capabilities: dict[str, Any] = {}
        self.cancelled: list[Any] = []
        self.answers: dict[str, queue.Queue[Any]] = {}
        self.subscribed: dict[str, Emit] = {}
        self.listening: list[Emit] = []
        self.running: dict[Any, threading.Event] = {}
        self.tasks: dict[str, queue.Queue[Any]] = {}
        self.ended_tasks: list[str] = []

    def note_call(self, message: dict[str, Any]) -> None:
        """Count a call, in the order in which they come."""
        self.calls += message.get("method") == "tools/call"

    def handle(self, message: dict[str, Any], emit: Emit) -> None:
        refuse_tokens(json.dumps(message))
        method, id = message.get("method"), message.get("id")
        if method is None:
            if id in self.answers:
                self.answers[id].put(message)
        elif id is None:
            if method == "notifications/cancelled":
                asked = message["params"]["requestId"]
                self.cancelled.append(asked)
                if asked in self.running:
                    self.running[asked].set()
        else:
            self._answer(id, method, message.get("params") or {}, emit)

    def _answer(self, id: Any, method: str, params: dict[str, Any], emit: Emit) -> None:
        try:
            is_modern = VERSION in params.get("_meta", {})
            if is_modern and (self.era not in ("modern", "both") or method == "initialize"):
                raise RpcFault(-32600, "this server has sessions")
            if not is_modern and self.era == "modern":
                raise RpcFault(-32602, "'_meta' is missing")
            result = self._result(id, method, params, emit, is_modern)
        except RpcFault as fault:
            emit({"jsonrpc": "2.0", "id": id, "error": fault.error})
            return
        if result is not None:
            text = result if isinstance(result, str) else json.dumps(result)
            emit(f'{{"jsonrpc":"2.0","id":{json.dumps(id)},"result":{text}}}')

    def _result(self, id: Any, method: str, params: dict[str, Any], emit: Emit, is_modern: bool) -> Any:
        told = {"name": "far", "version": "1"}
        capabilities = {name: {"listChanged": True} for name in ("tools", "prompts", "resources")} | {"completions": {}}
        capabilities["resources"]["subscribe"] = True
        more = {"resultType": "complete", "_meta": {"io.modelcontextprotocol/serverInfo": told}} if is_modern else {}
        match method:
            case "server/discover":
                if self.era not in ("modern", "both"):
                    raise RpcFault(-32601, "unknown method")
                known = [MODERN, LEGACY] if self.era == "both" else [MODERN]
                return {"supportedVersions": known, "capabilities": capabilities, "instructions": "Ask far.", **more}
            case "initialize":
                self.capabilities = params["capabilities"]
                return {
                    "protocolVersion": self.era if self.era[0] == "2" else LEGACY,
                    "capabilities": capabilities,
                    "serverInfo": told,
                    "instructions": "Ask far.",
                }
            case "tools/list":
                holds = {"ttlMs": int(os.environ["FAR_TTL"]), "cacheScope": "public"} if "FAR_TTL" in os.environ else {}
                return {"tools": [self._tool(name) for name in self._names(params, is_modern)], **more, **holds}
            case "prompts/list":
                return {"prompts": [{"name": "hello", "arguments": [{"name": "who"}], "unknown": 1.0}], **more}
            case "resources/list":
                others = [{"uri": uri, "name": "other"} for uri in os.environ.get("FAR_URIS", "").split()]
                return {"resources": [{"uri": "far://one", "name": "one", "size": 3}, *others], **more}
            case "resources/templates/list":
                return {"resourceTemplates": [{"uriTemplate": "far://item/{id}", "name": "item"}], **more}
            case "prompts/get":
                who = params.get("arguments", {}).get("who", "you")
                return {"messages": [{"role": "user", "content": {"type": "text", "text": f"hello {who}"}}], **more}
            case "resources/read":
                return {"contents": [{"uri": params["uri"], "text": params["uri"], "odd": 1.0}], **more}
            case "completion/complete":
                return {"completion": {"values": [json.dumps(params["ref"]), params["argument"]["value"]]}, **more}
            case "subscriptions/listen":
                uris = params["notifications"].get("resourceSubscriptions", [])
                self.subscribed.update(dict.fromkeys(uris, emit))
                self.listening += [] if uris else [emit]
                return None
            case "resources/subscribe" | "resources/unsubscribe":
                if method.endswith("/subscribe"):
                    self.subscribed[params["uri"]] = emit
                else:
                    self.subscribed.pop(params["uri"], None)
                return {}
            case "tasks/result":
                said = self.tasks[params["taskId"]].get(timeout=60)
                related = {"io.modelcontextprotocol/related-task": {"taskId": params["taskId"]}}
                return {**_text(said), "_meta": {**related, "far/x": 1.0}}
            case "tasks/cancel":
                self.ended_tasks.append(params["taskId"])
                self.tasks[params["taskId"]].put("cancelled")
                return {"taskId": params["taskId"], "status": "cancelled"}
            case "tools/call":
                return self._call(id, params, emit, is_modern)
        raise RpcFault(-32601, f"unknown method {method}")

    def _names(self, params: dict[str, Any], is_modern: bool) -> list[str]:
        can = params["_meta"][CAPABILITIES] if is_modern else self.capabilities
        grown = [f"grown_{number}" for number in range(self.grown)]
        grown += [self._key_tool] if self._key_tool else []
        grown += TASKS if os.environ.get("FAR_TASKS") and not is_modern else ()
        return [name for name in [*NAMES, *grown] if name not in ASKING or _needs(name) in can]

    @property
    def _key_tool(self) -> str:
        """The tool that is named by its key, and repeats it."""
        return self.headers.get("X-Far-Tool", "").removeprefix("key-")

    def _tool(self, name: str) -> dict[str, Any]:
        repeated = f" by {self.headers['X-Far-Tool']}" if name == self._key_tool else ""
        return {
            "name": name,
            "title": f"The tool {name}",
            "description": f"does {name}{repeated}",
            "inputSchema": MIRRORED
            if name == "headers"
            else {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}},
            "annotations": {"readOnlyHint": name in ("echo", "count"), "future": 1.0},
            "icons": [{"src": "data:,"}],
            "_meta": {"far/x": 2**63},
            "zoo": None,
            **({"execution": {"taskSupport": "required"}} if name == "long" else {}),
        }

    def _call(self, id: Any, params: dict[str, Any], emit: Emit, is_modern: bool) -> Any:
        arguments, token = params.get("arguments", {}), params.get("_meta", {}).get("progressToken")
        match params["name"]:
            case "echo":
                return _text(json.dumps({"arguments": arguments, "meta": params.get("_meta")}))
            case "long":
                return self._begin_task(arguments, params, emit)
            case "tasks_begun":
                return _text(f"{len(self.tasks)}")
            case "tasks_ended":
                return _text(json.dumps(self.ended_tasks))
            case "odd":
                return ODD_RESULT
            case "error":
                raise RpcFault(-31999, "as the mount says it", {"why": "data"})
            case "headers":
                return _text(json.dumps(self.headers))
            case "count":
                return _text(f"{self.calls}")
            case "env":
                return _text(json.dumps(dict(os.environ)))
            case "pid":
                return _text(f"{os.getpid()}")
            case "progress":
                for step in (1, 2):
                    params = {"progressToken": token, "progress": step, "total": 2, "message": f"step {step}"}
                    emit({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
                return _text("done")
            case "log":
                wanted = params.get("_meta", {}).get(LOG_LEVEL)
                if is_modern and wanted not in ("debug", "info", "notice", "warning"):
                    return _text("silent")
                params = {"level": "warning", "data": {"a": 1.0}, "logger": "far"}
                emit({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
                return _text("logged")
            case "slow":
                end = self.running[id] = threading.Event()
                end.wait(60)
                return None
            case "later":
                if "inputResponses" not in params:
                    time.sleep(arguments.get("seconds", 1.0))
                return self._ask("ask", params, emit, is_modern) if "ask" in arguments else _text("it took a while")
            case "ask" | "sample" | "roots" as name:
                said = self._ask(name, params, emit, is_modern)
                for step in (1, 2) if "steps" in arguments else ():
                    progress = {"progressToken": token, "progress": step}
                    emit({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
                return {} if "empty" in arguments else said
            case "touch":
                for uri, tell in self.subscribed.items():
                    tell({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}})
                return _text(",".join(self.subscribed))
            case "exit":
                print("the last words", os.environ.get("KEY", ""), file=sys.stderr, flush=True)
                os._exit(3)
            case "rubbish":
                sys.stdout.write("a banner\n{not json}\n\n")
                return _text("after rubbish")
            case "flood":
                for number in range(5_000):
                    params = {"progressToken": token, "progress": number}
                    emit({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
                return _text("after a flood")
            case "wrong_id":
                emit({"jsonrpc": "2.0", "id": 999_999, "result": _text("nobody's")})
                return _text("mine")
            case "grow":
                self.grown += 1
                listening = self.listening if is_modern else [emit]
                for tell in listening if "FAR_TTL" not in os.environ else ():
                    tell({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
                return _text("grown")
            case "deep":
                return '{"content":[],"structuredContent":' + "[" * 100_000 + "]" * 100_000 + "}"
            case "large":
                return _text("x" * (64 * 2**20))
            case other:
                return {"content": [{"type": "text", "text": f"no tool {other}"}], "isError": True}

    def _ask(self, name: str, params: dict[str, Any], emit: Emit, is_modern: bool) -> Any:
        requests = {
            "ask": ("elicitation/create", {"message": "Who?", "requestedSchema": FORM}),
            "sample": ("sampling/createMessage", {"messages": [], "maxTokens": 5}),
            "roots": ("roots/list", {}),
        }
        method, sent = requests[name]
        if not is_modern:
            key = f"q-{uuid.uuid4()}"
            self.answers[key] = queue.Queue()
            emit({"jsonrpc": "2.0", "id": key, "method": method, "params": sent})
            said = self.answers[key].get(timeout=60)
            return _text(json.dumps(said.get("result", said.get("error"))))
        if "inputResponses" in params:
            assert params["requestState"] == "far-state", params
            return {"resultType": "complete", **_text(json.dumps(params["inputResponses"]["the key"]))}
        return {
            "resultType": "input_required",
            "inputRequests": {"the key": {"method": method, "params": sent}},
            "requestState": "far-state",
        }

    def _begin_task(self, arguments: dict[str, Any], params: dict[str, Any], emit: Emit) -> dict[str, Any]:
        if "task" not in params:
            raise RpcFault(-32601, "this tool runs as a task only")
        token, id = params.get("_meta", {}).get("progressToken"), uuid.uuid4().hex
        self.tasks[id] = queue.Queue()

        def work() -> None:
            if token is not None:
                time.sleep(0.2)  # until its result is asked for
                emit(
                    {
                        "jsonrpc": "2.0",
                        "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": 1},
                    }
                )
            said = "done"
            if "ask" in arguments:
                said = self._ask("ask", params, emit, False)["content"][0]["text"]
            if "forever" not in arguments:
                self.tasks[id].put(said)

        threading.Thread(target=work, daemon=True).start()
        now = "2026-01-01T00:00:00Z"
        return {"task": {"taskId": id, "status": "working", "createdAt": now, "lastUpdatedAt": now, "ttl": None}}


def _needs(name: str) -> str:
    return {"ask": "elicitation", "sample": "sampling", "roots": "roots"}[name]


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def serve_pipes(server: FarServer) -> None:
    lock = threading.Lock()

    def emit(message: Any) -> None:
        with lock:
            sys.stdout.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
            sys.stdout.flush()

    for line in sys.stdin:
        message = json.loads(line)
        server.note_call(message)
        threading.Thread(target=server.handle, args=(message, emit), daemon=True).start()
        if "method" in message and "id" not in message:
            time.sleep(0.001)  # in order


def serve_http(era: str, place: str) -> None:
    import http.server  # half of the time that a start takes, and pipes need none of it

    sessions: dict[str, FarServer] = {}
    common = FarServer(era)
    control: dict[str, Any] = {"forget": 0, "requests": 0, "target": ""}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: Any) -> None: ...

        def do_GET(self) -> None:
            if self.path == "/forget":
                sessions.clear()
                self._send(200, b"{}")
            elif self.path == "/requests":
                self._send(200, json.dumps(control["requests"]).encode())
            elif self.path == "/target":
                self._send(200, str(control["target"]).encode())
            else:
                self._send(405, b"")

        def do_DELETE(self) -> None:
            sessions.pop(self.headers.get("Mcp-Session-Id", ""), None)
            self._send(200, b"")

        def do_POST(self) -> None:
            control["requests"] += 1
            refuse_tokens(f"{self.path} {self.headers.as_string()}")
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if message.get("method") == "tools/call":
                control["target"] = self.path
            is_modern = VERSION in ((message.get("params") or {}).get("_meta") or {})
            id = self.headers.get("Mcp-Session-Id", "")
            if message.get("method") == "initialize" and era != "modern":
                id = uuid.uuid4().hex
                sessions[id] = FarServer(era)
            server = common if is_modern or era == "modern" else sessions.get(id)
            if server is None:
                self._send(
                    404 if id else 400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no session"}}'
                )
                return
            if is_modern:
                assert self.headers["Mcp-Method"] == message["method"], dict(self.headers)
                assert self.headers["MCP-Protocol-Version"] == MODERN
            if "id" not in message or "method" not in message:
                server.handle(message, lambda _: None)
                self._send(202, b"")
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            if message["method"] == "initialize":
                self.send_header("Mcp-Session-Id", id)
            self.end_headers()

            def emit(sent: Any) -> None:
                data = sent if isinstance(sent, str) else json.dumps(sent)
                self.wfile.write(f"event: message\ndata: {data}\n\n".encode())
                self.wfile.flush()

            server.note_call(message)
            told = ("Mcp-Param-", "X-Far-")
            server.headers = {name: value for name, value in self.headers.items() if name.startswith(told)}
            server.handle(message, emit)
            self.close_connection = True

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with open(place + ".part", "w") as file:
        file.write(str(served.server_port))
    os.replace(place + ".part", place)
    served.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        serve_http(sys.argv[1], sys.argv[2])
    else:
        serve_pipes(FarServer(sys.argv[1]))
