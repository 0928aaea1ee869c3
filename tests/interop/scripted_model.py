"""A scripted model at an OpenAI-compatible endpoint on loopback, which records its requests."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tests.clients.raw_client import PATIENCE

PAGE = "<!doctype html><title>Lighthouses</title><article><h1>Lighthouses</h1><p>{} is seen from afar.</p></article>"
BEACON = "the beacon of Alexandria"

Call = tuple[str, dict[str, Any]]  # a tool, and its arguments


class Model:
    """A model that makes `calls`, one per turn, and then ends. `url` is its API, `page` a page with BEACON."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.requests: list[dict[str, Any]] = []
        self.url = self.page = ""

    def sent(self, call: int) -> str:
        """Return all that one of the model's calls added to its input, as JSON, without the repeated call."""
        before, after = (_messages(self.requests[place]) for place in (call, call + 1))
        return json.dumps([each for each in after[len(before) :] if not _is_own(each)])

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of the answer to a request of either API."""
        turn = len(self.requests)
        self.requests.append(body)
        tool, arguments = self.calls[turn] if turn < len(self.calls) else ("", {})
        called = {"name": _offered(body, tool), "arguments": json.dumps(arguments)} if tool else None
        if path.endswith("/responses"):
            return _response(turn, called)
        return _completion(turn, called)


@contextlib.contextmanager
def scripted_model(calls: Sequence[Call]) -> Iterator[Model]:
    model = Model(calls)

    class Endpoint(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._tell(PAGE.format(BEACON).encode(), "text/html")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._tell(json.dumps(model.answer(self.path, body)).encode(), "application/json")

        def _tell(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    model.page = f"http://127.0.0.1:{server.server_address[1]}/page"
    model.url = model.page.replace("/page", "/v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


def _messages(body: dict[str, Any]) -> list[Any]:
    listed = body.get("messages", body.get("input"))
    return listed if isinstance(listed, list) else [listed]


def _is_own(message: dict[str, Any]) -> bool:
    return message.get("role") == "assistant" or message.get("type") == "function_call"


def _offered(body: dict[str, Any], tool: str) -> str:
    """Return the framework's name of the tool: CrewAI offers ReadImage as `read_image`."""
    names = [each.get("function", each)["name"] for each in body.get("tools", ())]
    return next(name for name in names if name.replace("_", "").lower() == tool.lower())


def _completion(turn: int, called: dict[str, str] | None) -> dict[str, Any]:
    """Return an answer of the Chat Completions API."""
    if called is not None:
        calls = [{"id": f"call_{turn}", "type": "function", "function": called}]
        choice = {"message": {"role": "assistant", "content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}
    else:
        choice = {"message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}
    told = {"id": f"c_{turn}", "object": "chat.completion", "created": 1, "model": "scripted"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {**told, "choices": [{"index": 0, **choice}], "usage": usage}


def _response(turn: int, called: dict[str, str] | None) -> dict[str, Any]:
    """Return an answer of the Responses API."""
    if called is not None:
        output: Any = {"type": "function_call", "id": f"fc_{turn}", "call_id": f"call_{turn}", **called}
    else:
        text = {"type": "output_text", "text": "Done.", "annotations": []}
        output = {"type": "message", "id": f"m_{turn}", "role": "assistant", "content": [text]}
    told = {"id": f"r_{turn}", "object": "response", "created_at": 1, "model": "scripted", "status": "completed"}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **details}
    listed = [{**output, "status": "completed"}]
    return {**told, "output": listed, "parallel_tool_calls": False, "tool_choice": "auto", "tools": [], "usage": usage}
