"""Tools for the conformance suite that ask in mid-call: forms of every shape, and sampling."""

import json
from typing import Any

from toolgate.tools import Context, tool


def _form(required: list[str] | None = None, /, **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


def _choices(*pairs: str) -> list[dict[str, str]]:
    return [{"const": value, "title": value.replace("value", "Option ")} for value in pairs]


async def _ask(ctx: Context, message: str, form: dict[str, Any]) -> str:
    answer = await ctx.elicit(message, form)
    return f"action={answer.action}, content={json.dumps(dict(answer.content))}"


@tool(read_only=True)
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Have the client's model answer a prompt."""
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    answer = await ctx.sample({"messages": [message], "maxTokens": 100})
    return f"LLM response: {answer['content'].get('text', '')}"


@tool(read_only=True)
async def test_elicitation(message: str, ctx: Context) -> str:
    """Ask for a user's name and address."""
    form = _form(["username", "email"], username={"type": "string"}, email={"type": "string"})
    return f"User response: {await _ask(ctx, message, form)}"


@tool(read_only=True)
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask by a form whose fields of every primitive type have defaults."""
    form = _form(
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )
    return f"Elicitation completed: {await _ask(ctx, 'Please check these values.', form)}"


@tool(read_only=True)
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask by a form that has every kind of choice."""
    options = ["option1", "option2", "option3"]
    titled = _choices("value1", "value2", "value3")
    form = _form(
        untitledSingle={"type": "string", "enum": options},
        titledSingle={"type": "string", "oneOf": titled},
        legacyEnum={"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        untitledMulti={"type": "array", "items": {"type": "string", "enum": options}},
        titledMulti={"type": "array", "items": {"anyOf": titled}},
    )
    return f"Elicitation completed: {await _ask(ctx, 'Please choose.', form)}"


@tool(read_only=True)
async def test_streaming_elicitation(ctx: Context) -> str:
    """Report progress and then ask, which may put no request on the stream where there are no such requests."""
    await ctx.progress(0, 1)
    return await _ask(ctx, "Go on?", _form(ok={"type": "boolean"}))


@tool(read_only=True)
async def test_missing_capability(ctx: Context) -> str:
    """Need a client that can sample."""
    message = {"role": "user", "content": {"type": "text", "text": "Say hello."}}
    answer = await ctx.sample({"messages": [message], "maxTokens": 10})
    return f"LLM response: {answer['content'].get('text', '')}"
