"""Drive one agent of a framework by a scripted model, in the framework's own environment, from one JSON object.

    python drive.py '{"framework": "pydantic-ai", "model": URL, "url": URL or null, "command": [WORD, …]}'

The agent gets a prompt, makes the model's calls, and ends. The model's endpoint records what it was sent."""

import asyncio
import json
import sys
from typing import Any

PROMPT = "Go."
TURNS = 30  # of the model: more than any script has
PATIENCE = 60.0  # seconds for a call; the OpenAI Agents SDK waits 5 by itself


async def pydantic_ai(told: dict[str, Any]) -> None:
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    server: Any = told["url"] or StdioTransport(told["command"][0], told["command"][1:])
    model = OpenAIChatModel("scripted", provider=OpenAIProvider(base_url=told["model"], api_key="none"))
    await Agent(model, toolsets=[MCPToolset(server)]).run(PROMPT, usage_limits=UsageLimits(request_limit=TURNS))


async def openai_agents(told: dict[str, Any]) -> None:
    from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    made: Any
    if told["url"]:
        made = MCPServerStreamableHttp({"url": told["url"]}, client_session_timeout_seconds=PATIENCE)
    else:
        how: Any = {"command": told["command"][0], "args": told["command"][1:]}
        made = MCPServerStdio(how, client_session_timeout_seconds=PATIENCE)
    model = OpenAIResponsesModel("scripted", AsyncOpenAI(base_url=told["model"], api_key="none"))
    async with made as server:
        await Runner.run(Agent("tester", model=model, mcp_servers=[server]), PROMPT, max_turns=TURNS)


def crewai(told: dict[str, Any]) -> None:
    from crewai import LLM, Agent, Crew, Task
    from mcp import StdioServerParameters
    from mcpadapt.core import MCPAdapt
    from mcpadapt.crewai_adapter import CrewAIAdapter

    if told["url"]:
        server: Any = {"url": told["url"], "transport": "streamable-http"}
    else:
        server = StdioServerParameters(command=told["command"][0], args=told["command"][1:])
    with MCPAdapt(server, CrewAIAdapter()) as tools:
        llm = LLM(model="openai/gpt-4o", base_url=told["model"], api_key="none")
        agent = Agent(role="tester", goal="test", backstory="a test", llm=llm, tools=tools, max_iter=TURNS)
        task = Task(description=PROMPT, expected_output="nothing", agent=agent)
        Crew(agents=[agent], tasks=[task]).kickoff()


DRIVERS = {"pydantic-ai": pydantic_ai, "openai-agents": openai_agents, "crewai": crewai}

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    driven = DRIVERS[told["framework"]](told)
    if driven is not None:
        asyncio.run(driven)
