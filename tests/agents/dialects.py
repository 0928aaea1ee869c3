"""Read what agents send to a model, and write what the model answers, in the four interfaces that agents speak."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

SERVER = "toolgate"  # the server's name in every agent's configuration; each puts it into the names of its tools
STEP = re.compile(r"step_(\d+)$")
SEARCH = "ToolSearch"  # Claude Code's: tools of servers are loaded by it before they are called
CONNECTING = "MCP servers are still connecting"  # Claude Code's: a search waits for them
DEFERRED = re.compile(rf"mcp__{SERVER}__\w+")
USAGE = 10  # tokens; agents add them up, and compact a conversation that seems long


@dataclass(frozen=True, slots=True)
class Shown:
    """What the model was sent of one tool's answer."""

    text: str
    images: int


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as an agent offers it to its model."""

    name: str  # the agent's own, with its prefix
    description: str
    namespace: str | None = None


Offers = Mapping[str, Offer]  # by the tool's name at the server


class Dialect(Protocol):
    def offers(self, body: Any) -> dict[str, Offer]:
        """Return the tools of our server that the request offers."""

    def shown(self, body: Any) -> dict[int, Shown]:
        """Return what the request shows of the answers, by the step that called."""

    def deferred(self, body: Any) -> dict[str, Offer]:
        """Return the tools of our server that are named, and loaded before they are called."""

    def is_connecting(self, body: Any) -> bool:
        """Return whether a server's tools come later, and can be searched for meanwhile."""

    def load(self, body: Any, offers: Iterable[Offer]) -> Iterator[Any]:
        """Yield the events of a message that loads tools, or without any that searches for our server's."""

    def call(self, body: Any, step: int, offer: Offer, arguments: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the events of a message that calls a tool."""

    def say(self, body: Any, text: str) -> Iterator[Any]:
        """Yield the events of a message of text."""


def bare_name(name: str) -> str | None:
    """Return the server's own name of a tool, or None if it is no tool of our server."""
    _, found, tail = name.rpartition(SERVER)
    return tail.lstrip("_-") if found and tail.lstrip("_-") else None


def step_id(step: int) -> str:
    return f"call_step_{step}"


def step_of(id: Any) -> int | None:
    found = STEP.search(str(id))
    return int(found[1]) if found else None


def texts(parts: Any) -> str:
    """Return the text of a content that is a string, or a list of blocks."""
    if isinstance(parts, str):
        return parts
    return "\n".join(str(part["text"]) for part in parts or [] if isinstance(part, dict) and "text" in part)


def count(parts: Any, *types: str) -> int:
    return sum(isinstance(part, dict) and part.get("type") in types for part in parts or [])


def _offers(pairs: Iterable[tuple[str, str]]) -> dict[str, Offer]:
    found = {}
    for name, description in pairs:
        bare = bare_name(name)
        if bare:
            found[bare] = Offer(name, description)
    return found


class Eager:
    """An interface whose agents offer all tools at once."""

    def deferred(self, body: Any) -> dict[str, Offer]:
        return {}

    def is_connecting(self, body: Any) -> bool:
        return False

    def load(self, body: Any, offers: Iterable[Offer]) -> Iterator[Any]:
        raise NotImplementedError


class Anthropic:
    """The Messages API: Claude Code."""

    def offers(self, body: Any) -> dict[str, Offer]:
        return _offers((tool["name"], tool.get("description", "")) for tool in body.get("tools", []))

    def shown(self, body: Any) -> dict[int, Shown]:
        found = {}
        for message in body["messages"]:
            for block in message["content"] if isinstance(message["content"], list) else []:
                step = step_of(block.get("tool_use_id"))
                if step is not None:
                    content = block.get("content")
                    images = count(content, "image") if isinstance(content, list) else 0
                    found[step] = Shown(texts(content), images)
        return found

    def call(self, body: Any, step: int, offer: Offer, arguments: Mapping[str, Any]) -> Iterator[Any]:
        yield from self.use(body, step_id(step), offer.name, arguments)

    def deferred(self, body: Any) -> dict[str, Offer]:
        if not self._has_search(body):
            return {}
        return _offers((name, "") for name in DEFERRED.findall(json.dumps(body["messages"])))

    def is_connecting(self, body: Any) -> bool:
        return self._has_search(body) and CONNECTING in json.dumps(body["messages"])

    def load(self, body: Any, offers: Iterable[Offer]) -> Iterator[Any]:
        names = ",".join(offer.name for offer in offers)
        query = {"query": f"select:{names}" if names else SERVER}
        yield from self.use(body, f"toolu_search_{len(body['messages'])}", SEARCH, query)

    def _has_search(self, body: Any) -> bool:
        return any(tool["name"] == SEARCH for tool in body.get("tools", []))

    def use(self, body: Any, id: str, name: str, arguments: Mapping[str, Any]) -> Iterator[Any]:
        block = {"type": "tool_use", "id": id, "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        yield from self._message(body, block, delta, "tool_use")

    def say(self, body: Any, text: str) -> Iterator[Any]:
        yield from self._message(body, {"type": "text", "text": ""}, {"type": "text_delta", "text": text}, "end_turn")

    def _message(self, body: Any, block: Any, delta: Any, reason: str) -> Iterator[Any]:
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body.get("model"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": USAGE, "output_tokens": USAGE},
        }
        yield {"type": "message_start", "message": message}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
        ended = {"stop_reason": reason, "stop_sequence": None}
        yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": USAGE}}
        yield {"type": "message_stop"}


class Responses(Eager):
    """OpenAI's Responses API: Codex."""

    def offers(self, body: Any) -> dict[str, Offer]:
        found = {}
        for tool in body.get("tools", []):
            if tool.get("type") == "namespace" and bare_name(f"{tool['name']}_x"):
                for inner in tool["tools"]:
                    found[inner["name"]] = Offer(inner["name"], inner.get("description", ""), tool["name"])
            elif bare_name(tool.get("name", "")):
                found.update(_offers([(tool["name"], tool.get("description", ""))]))
        return found

    def shown(self, body: Any) -> dict[int, Shown]:
        found = {}
        for item in body["input"]:
            step = step_of(item.get("call_id"))
            if step is not None and item["type"] == "function_call_output":
                images = count(item["output"], "input_image") if isinstance(item["output"], list) else 0
                found[step] = Shown(texts(item["output"]), images)
        return found

    def call(self, body: Any, step: int, offer: Offer, arguments: Mapping[str, Any]) -> Iterator[Any]:
        item = {
            "type": "function_call",
            "id": f"fc_{step}",
            "call_id": step_id(step),
            "name": offer.name,
            "arguments": json.dumps(arguments),
            "status": "completed",
        }
        yield from self._response({**item, "namespace": offer.namespace} if offer.namespace else item)

    def say(self, body: Any, text: str) -> Iterator[Any]:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        yield from self._response({"type": "message", "id": "msg_1", "role": "assistant", "content": content})

    def _response(self, item: Any) -> Iterator[Any]:
        response: dict[str, Any] = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
        yield {"type": "response.created", "response": response}
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        usage = {
            "input_tokens": USAGE,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": USAGE,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2 * USAGE,
        }
        done = {**response, "status": "completed", "output": [item], "usage": usage}
        yield {"type": "response.completed", "response": done}


class Chat(Eager):
    """OpenAI's Chat Completions: opencode."""

    def offers(self, body: Any) -> dict[str, Offer]:
        functions = [tool["function"] for tool in body.get("tools", [])]
        return _offers((function["name"], function.get("description", "")) for function in functions)

    def shown(self, body: Any) -> dict[int, Shown]:
        """Pictures have no place in a tool's message: they follow in one of the user's."""
        found: dict[int, Shown] = {}
        last: int | None = None
        for message in body["messages"]:
            content = message.get("content")
            if message["role"] == "tool":
                last = step_of(message["tool_call_id"])
                if last is not None:
                    found[last] = Shown(texts(content), count(content, "image_url"))
            elif message["role"] == "assistant":
                last = None
            elif last is not None and isinstance(content, list):
                found[last] = Shown(found[last].text, found[last].images + count(content, "image_url"))
        return found

    def call(self, body: Any, step: int, offer: Offer, arguments: Mapping[str, Any]) -> Iterator[Any]:
        function = {"name": offer.name, "arguments": json.dumps(arguments)}
        call = {"index": 0, "id": step_id(step), "type": "function", "function": function}
        yield from self._chunks(body, {"tool_calls": [call]}, "tool_calls")

    def say(self, body: Any, text: str) -> Iterator[Any]:
        yield from self._chunks(body, {"content": text}, "stop")

    def _chunks(self, body: Any, delta: Any, reason: str) -> Iterator[Any]:
        head = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": body.get("model")}
        said = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}
        yield {**head, "choices": [said]}
        usage = {"prompt_tokens": USAGE, "completion_tokens": USAGE, "total_tokens": 2 * USAGE}
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}
        yield "[DONE]"


class Gemini(Eager):
    """Google's generateContent: Gemini CLI."""

    def offers(self, body: Any) -> dict[str, Offer]:
        declared = [one for tool in body.get("tools", []) for one in tool.get("functionDeclarations", [])]
        return _offers((one["name"], one.get("description", "")) for one in declared)

    def shown(self, body: Any) -> dict[int, Shown]:
        """Pictures stand beside the answer, or in it."""
        found: dict[int, Shown] = {}
        for content in body["contents"]:
            parts = content.get("parts", [])
            for part in parts:
                answer = part.get("functionResponse")
                if answer and bare_name(answer["name"]):
                    inner = [*parts, *answer.get("parts", [])]
                    images = sum("inlineData" in one for one in inner)
                    found[len(found)] = Shown("\n".join(_strings(answer["response"])), images)
        return found

    def call(self, body: Any, step: int, offer: Offer, arguments: Mapping[str, Any]) -> Iterator[Any]:
        call = {"name": offer.name, "args": dict(arguments), "id": step_id(step)}
        yield from self._chunk({"functionCall": call, "thoughtSignature": "c2ln"})

    def say(self, body: Any, text: str) -> Iterator[Any]:
        yield from self._chunk({"text": text})

    def _chunk(self, part: Any) -> Iterator[Any]:
        usage = {"promptTokenCount": USAGE, "candidatesTokenCount": USAGE, "totalTokenCount": 2 * USAGE}
        candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
        yield {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value."""
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from _strings(inner)
        case list():
            for inner in value:
                yield from _strings(inner)
        case _:
            pass


DIALECTS: dict[str, Dialect] = {  # by what the path of a request has
    "/messages": Anthropic(),
    "/responses": Responses(),
    "/chat/completions": Chat(),
    "enerateContent": Gemini(),
}
