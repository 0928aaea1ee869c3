"""Tools for the conformance suite that ask by results, and take the answers in the retry (`input_required`)."""

from typing import Any

from toolgate.tools import Context, tool

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
YES = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
COLOR = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}


def _words(text: str) -> dict[str, Any]:
    """The parameters of a request for a model's words."""
    return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}], "maxTokens": 100}


def _question(message: str, form: dict[str, Any]) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": form}}


@tool(read_only=True)
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Ask for a name."""
    answer = await ctx.elicit("What is your name?", NAME, key="user_name")
    return f"Hello, {answer.content.get('name', 'nobody')}!"


@tool(read_only=True)
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Ask the client's model."""
    answer = await ctx.sample(_words("What is the capital of France?"), key="capital_question")
    return f"LLM response: {answer['content'].get('text', '')}"


@tool(read_only=True)
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """Ask for the client's folders."""
    roots = await ctx.roots(key="client_roots")
    return f"Roots: {', '.join(root['uri'] for root in roots)}"


@tool(read_only=True)
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Ask for a yes, with a state that must come back."""
    answer = await ctx.elicit("Please confirm.", YES, key="confirm")
    return f"state-ok: {answer.content.get('ok')}"


@tool(read_only=True)
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Ask for a yes, with a state that must not change."""
    answer = await ctx.elicit("Please confirm.", YES, key="confirm")
    return f"confirmed: {answer.content.get('ok')}"


@tool(read_only=True)
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Ask the person, the model and the client at once."""
    answers = await ctx.ask(
        {
            "user_name": _question("What is your name?", NAME),
            "greeting": {"method": "sampling/createMessage", "params": _words("Write a greeting.")},
            "client_roots": {"method": "roots/list", "params": {}},
        }
    )
    return f"{len(answers)} answers"


@tool(read_only=True)
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Ask two things, one after the other."""
    name = await ctx.elicit("Step 1: what is your name?", NAME, key="step1")
    color = await ctx.elicit("Step 2: what is your favorite color?", COLOR, key="step2")
    return f"{name.content.get('name')} likes {color.content.get('color')}"


@tool(read_only=True)
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Ask everything this client can be asked."""
    known = {
        "elicitation": _question("What is your name?", NAME),
        "sampling": {"method": "sampling/createMessage", "params": _words("Say hello.")},
        "roots": {"method": "roots/list", "params": {}},
    }
    answers = await ctx.ask({capability: asked for capability, asked in known.items() if ctx.can(capability)})
    return f"answered: {', '.join(answers)}"
