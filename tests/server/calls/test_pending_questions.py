"""Questions on the server's own page: asked for clients without forms, answered once, by their principal, for
one call."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS
from tests.servers.http_in_process import Exchange, Inside, inside, named
from toolgate.server.app.app import App
from toolgate.server.app.http_app import HttpApp
from toolgate.server.calls import pending_questions
from toolgate.server.calls.pending_questions import (
    GONE,
    MAX_QUESTION_BYTES,
    MAX_QUESTIONS,
    PendingQuestions,
    QuestionView,
    QuestionWatcher,
)
from toolgate.server.calls.policy.rules import Rules, parse_rules
from toolgate.server.calls.question import PendingQuestion
from toolgate.server.config import load
from toolgate.tools.api.errors import StillWaitingError, UnansweredError

URL = "http://127.0.0.1:1/x/"
ADA = named("ada")
PREFIX = "io.modelcontextprotocol/"
TASKS = {"extensions": {PREFIX + "tasks": {}}}
WHO = {"name": "Ada"}
CHOOSE = '{"questions": [{"question": "Which?", "options": ["one", "two"]}]}'


class Page:
    """Stands in for the page that shows one server's questions."""

    def __init__(self, held: Inside) -> None:
        self.held = held
        self.questions = held.app.host.server().questions
        self.questions.url = URL

    async def asked(self, principal: str = ADA) -> QuestionView:
        """Return the one waiting question, once there is one. The page is open from now on."""
        with self.questions.follow(principal) as changes:
            return await self.one(changes)

    async def one(self, changes: QuestionWatcher) -> QuestionView:
        async with asyncio.timeout(PATIENCE):
            while not (found := self.questions.waiting(changes.principal)):
                await anext(changes)
        (waiting,) = found
        return waiting

    def accept(self, waiting: QuestionView, principal: str = ADA, **content: Any) -> str | None:
        return self.questions.answer(principal, waiting.id, "accept", content)

    def call(
        self, name: str, arguments: Any = None, user: str = "ada", method: str = "tools/call", **more: Any
    ) -> Exchange:
        """Call as a client of the stateless era that declares nothing, or `capabilities`."""
        capabilities = more.pop("capabilities", {})
        meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": capabilities}
        meta |= {PREFIX + "clientInfo": {"name": "tester", "version": "1"}, **more.pop("meta", {})}
        params = {"name": name, "arguments": arguments or {}, "_meta": meta, **more}
        if method == "resources/read":
            params = {"uri": name, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        told = {"mcp_protocol_version": STATELESS, "mcp_method": method, "mcp_name": name}
        return self.held.ask("POST", message, **told, x_user=user)

    async def said(self, *call: Any, **how: Any) -> str:
        """Return the text of a call's result, with "! " before a refusal."""
        answer = await self.call(*call, **how).json()
        assert "result" in answer, answer
        result = answer["result"]
        text: str = result["content"][0]["text"]
        return f"! {text}" if result.get("isError") else text


def on_page(folder: Path, body: Callable[[Page], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with inside(folder) as held, asyncio.timeout(PATIENCE * 2):
            await body(Page(held))
            assert held.app.host.server().questions.waiting(ADA) == []

    asyncio.run(bounded())


def test_a_call_waits_while_the_page_is_open_and_the_client_is_told(tmp_path: Path) -> None:
    async def body(page: Page) -> None:
        for revision in ("2024-11-05", "2025-03-26", "2025-11-25"):
            session = await page.held.session(revision)
            with page.questions.follow(ADA) as changes:
                call = page.held.call(session, 1, "ask_name", {"why": "asked"})
                waiting = await page.one(changes)
                assert page.accept(waiting, **WHO) is None
            messages = await call.messages()
            assert messages[-1]["result"]["content"][0]["text"] == "Ada", messages
            notes = [message for message in messages if "method" in message]
            assert any(note["method"] == "notifications/message" and URL in note["params"]["data"] for note in notes)
            told = [note["params"].get("message") for note in notes if note["method"] == "notifications/progress"]
            assert any(URL in (text or "") for text in told) == (revision != "2024-11-05")
        assert (waiting.tool, waiting.client, waiting.message, waiting.approval) == (
            "ask_name",
            "client",
            "who?",
            None,
        )
        assert waiting.schema["properties"] == {"name": {"type": "string"}}
        assert waiting.expires == pytest.approx(waiting.asked + pending_questions.LIFETIME, abs=5)

        with page.questions.follow(ADA) as changes:  # in the stateless era nothing has to be declared for it either
            call = page.call("ask_name", {"why": "other"})
            assert page.accept(await page.one(changes), **WHO) is None
            assert (await call.json())["result"]["content"][0]["text"] == "Ada"

    on_page(tmp_path, body)


def test_without_an_open_page_the_question_waits_and_the_same_call_takes_the_answer(tmp_path: Path) -> None:
    async def body(page: Page) -> None:
        mine, other = {"why": "mine"}, {"why": "other"}
        told = await page.said("ask_name", mine)
        assert told.startswith("! no answer yet") and f"answer at {URL} within 10 minutes" in told
        assert await page.said("ask_name", mine) == told
        waiting = await page.asked()
        assert page.questions.answer(named("bob"), waiting.id, "accept", WHO) == GONE
        assert page.questions.waiting(named("bob")) == []
        assert page.questions.answer(ADA, waiting.id, "accept", {"name": 5}) == "name: this must be text."
        assert page.questions.answer(ADA, waiting.id, "shrug") == "An answer is one of accept, decline, cancel."
        assert page.accept(waiting, **WHO) is None
        assert page.accept(waiting, **WHO) == GONE
        assert (await page.said("ask_name", other)).startswith("!")  # other arguments, another question
        assert (await page.said("ask_name", mine, "bob")).startswith("!")
        assert await page.said("ask_name", mine) == "Ada"
        assert page.questions.answer(ADA, (await page.asked()).id, "cancel") is None
        assert (await page.said("ask_name", mine)).startswith("!")  # an answer is for one call
        assert len(page.questions.waiting(ADA)) == 1

        # what the person was asked before, and what was done once, goes along from try to try
        page.questions.drop_all(ADA)
        assert (await page.said("ask")).startswith("!")
        assert page.accept(await page.asked(), **WHO) is None
        assert (await page.said("ask")).startswith("!")
        assert (await page.asked()).message == "second?"
        assert (await page.said("ask")).startswith("!")
        assert page.questions.answer(ADA, (await page.asked()).id, "decline") is None
        assert await page.said("ask") == "accept {'name': 'Ada'} decline {} 1"
        assert (await page.said("ask")).startswith("!")
        page.questions.drop_all(ADA)

        # prompts and what is read ask in the same way, and so does a question in a task group
        for name, method in (("personal", "prompts/get"), ("test://asked", "resources/read")):
            refused = (await page.call(name, method=method).json())["error"]
            assert refused["code"] == -32603 and f"answer at {URL}" in refused["message"]
            waiting = await page.asked()
            assert waiting.tool == name and page.accept(waiting, **WHO) is None
            assert "Ada" in str((await page.call(name, method=method).json())["result"])
        assert (await page.said("ask_in_group")).startswith("! no answer yet")
        assert page.accept(await page.asked(), **WHO) is None
        assert await page.said("ask_in_group") == "accept"

        # the questions of AskUserQuestion can be asked in the conversation as well
        text = await page.said("AskUserQuestion", {"questions_json": CHOOSE})
        assert "Ask the person in the conversation" in text and f"answer at {URL}" in text
        assert page.accept(await page.asked(), question_1="two") is None
        assert '"selected":"two"' in await page.said("AskUserQuestion", {"questions_json": CHOOSE})

    on_page(tmp_path, body)


def test_an_approval_on_the_page_is_for_one_call_with_its_very_arguments(tmp_path: Path) -> None:
    run = {"command": "echo run >> runs; echo done \N{RIGHT-TO-LEFT OVERRIDE}"}

    async def body(page: Page) -> None:
        page.held.app.host.server().policy.rules = Rules(approve=parse_rules(["Bash", "ask"]))
        assert "takes a person's approval, and was not run" in await page.said("Bash", run)
        waiting = await page.asked()
        assert waiting.approval and waiting.schema == {"type": "object", "properties": {}}
        assert waiting.approval is not None and waiting.approval.command == "echo run >> runs; echo done \\u202e"
        assert waiting.approval.arguments == "" and waiting.client == "client"
        assert page.accept(waiting) is None
        for other in ({"command": run["command"] + " "}, {**run, "timeout": 9_000}):
            assert (await page.said("Bash", other)).startswith("!")
        assert (await page.said("Bash", run, "bob")).startswith("!")
        results = await asyncio.gather(*(page.said("Bash", run) for _ in range(8)))
        assert sum(not said.startswith("!") for said in results) == 1
        page.questions.drop_all(ADA)
        for action, told in (("decline", "declined"), ("cancel", "closed the question")):
            assert (await page.said("Bash", run)).startswith("!")
            assert page.questions.answer(ADA, (await page.asked()).id, action) is None
            assert told in await page.said("Bash", run)
        (written,) = tmp_path.rglob("runs")
        assert written.read_text() == "run\n"

        # a tool that asks something itself keeps its approval until it has run through, and no longer
        assert (await page.said("ask")).startswith("! ask takes")
        assert page.accept(await page.asked()) is None
        for message in ("first?", "second?"):
            assert (await page.said("ask")).startswith("! no answer")
            waiting = await page.asked()
            assert waiting.message == message and page.accept(waiting, **WHO) is None
        assert (await page.said("ask")).startswith("accept")
        assert (await page.said("ask")).startswith("! ask takes")
        page.questions.drop_all(ADA)

        # whoever can be asked through their client is, and an answer on the page is none of theirs
        asked = page.call("Bash", run, capabilities={"elicitation": {}})
        assert (await asked.json())["result"]["resultType"] == "input_required"
        assert page.questions.waiting(ADA) == []
        replies = {"inputResponses": {"approval": {"action": "accept"}}}
        assert (await page.said("Bash", run, **replies)).startswith("!")
        page.questions.drop_all(ADA)

    on_page(tmp_path, body)


def test_a_question_ends_with_its_call_its_time_its_principal_and_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(page: Page) -> None:
        with page.questions.follow(ADA) as changes:
            call = page.call("ask_name")
            waiting = await page.one(changes)
            await call.hang_up()  # which cancels it
            assert page.questions.waiting(ADA) == [] and page.accept(waiting, **WHO) == GONE

            call = page.call("ask_name")
            await page.one(changes)
            await page.held.app.host.end_principal(ADA)  # as Standing does
            assert "has expired without an answer" in (await call.json())["result"]["content"][0]["text"]

            server = page.held.app.host.server()
            server.settings = type(server.settings)(hold=0.2)
            assert (await page.said("ask_name")).startswith(f"! no answer yet. The person can answer at {URL}")
            assert page.accept(await page.one(changes), **WHO) is None  # it has stayed
            assert await page.said("ask_name") == "Ada"

            # a task waits without anybody's page, as long as the question does
        made = (await page.call("asks_later", capabilities=TASKS).json())["result"]
        with page.questions.follow(ADA) as changes:
            for name in ("Ada", "Bob"):
                waiting = await page.one(changes)
                assert page.accept(waiting, name=name) is None
            async with asyncio.timeout(PATIENCE):
                while (task := await got(page, made["taskId"]))["status"] == "working":
                    pass
            assert task["result"]["content"][0]["text"] == "Ada Bob"

            monkeypatch.setattr(pending_questions, "LIFETIME", 0.05)
            assert (await page.said("ask_name")).startswith("!")
            async with asyncio.timeout(PATIENCE):
                while page.questions.waiting(ADA):
                    await anext(changes)
            monkeypatch.undo()

            server.settings = type(server.settings)()
            call = page.call("ask_name")
            await page.one(changes)
            page.questions.close()
            assert "has expired without an answer" in (await call.json())["result"]["content"][0]["text"]
            refused = (await page.call("ask_name").json())["error"]
            assert refused["code"] == -32021 and refused["data"] == {"requiredCapabilities": {"elicitation": {}}}

    async def got(page: Page, id: str) -> Any:
        meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": TASKS}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": id, "_meta": meta}}
        told = {"mcp_protocol_version": STATELESS, "mcp_method": "tasks/get", "mcp_name": id}
        return (await page.held.ask("POST", message, **told).json())["result"]

    on_page(tmp_path, body)


def test_a_question_ends_with_the_right_that_its_call_came_by(tmp_path: Path) -> None:
    async def body(page: Page) -> None:
        assert (await page.said("ask_name", {"why": "waits"})).startswith("! no answer yet")
        assert list(page.questions.rights()) == [("ada", "client")]
        page.questions.drop_rights([("bob", "client"), "a grant"])
        assert len(page.questions.waiting(ADA)) == 1
        page.questions.drop_rights([("ada", "client")])
        assert page.questions.waiting(ADA) == []

    on_page(tmp_path, body)


def test_one_question_too_many_costs_its_principal_the_oldest() -> None:
    async def body() -> None:
        held = PendingQuestions(URL)

        def put(principal: str, number: Any) -> PendingQuestion:
            return held.find_or_add(principal, ["call"], number, tool="t", client="c", message=str(number), schema={})

        oldest, others = put("ada", 0), put("bob", 0)
        waits = asyncio.create_task(held.wait([oldest], PATIENCE))
        for number in range(1, MAX_QUESTIONS):
            put("ada", number)
        assert not oldest.answer.done()
        put("ada", MAX_QUESTIONS)
        with pytest.raises(UnansweredError) as caught:
            await waits
        assert not isinstance(caught.value, StillWaitingError)
        assert [each.message for each in held.waiting("ada")] == [str(number) for number in range(1, MAX_QUESTIONS + 1)]
        assert [each.id for each in held.waiting("bob")] == [others.view.id]
        # halves of surrogate pairs are told from one another
        assert put("eve", "\ud800").question != put("eve", "\ud801").question
        assert len(held.waiting("eve")) == 2
        held.close()

    asyncio.run(body())


def test_questions_of_a_principal_are_bounded_in_bytes_too() -> None:
    async def body() -> None:
        held = PendingQuestions(URL)

        def put(message: str, **more: Any) -> PendingQuestion:
            return held.find_or_add("ada", ["call"], message[:9], tool="t", client="c", message=message, schema=more)

        oldest = put("0" * (MAX_QUESTION_BYTES // 2))
        put("1", properties={"a": {"title": "a" * (MAX_QUESTION_BYTES // 2)}})
        assert oldest.answer.result() is None and [each.message for each in held.waiting("ada")] == ["1"]
        put("2")
        assert [each.message for each in held.waiting("ada")] == ["1", "2"]
        too_large = put("3" * MAX_QUESTION_BYTES)
        assert too_large.answer.result() is None and held.waiting("ada") == []
        assert put("4").view in held.waiting("ada")
        held.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"auth": "none"}, "http://127.0.0.1:8080/"),
        ({"auth": "oauth"}, "http://127.0.0.1:8080/"),
        ({"auth": "https://issuer.example"}, None),
        (
            {"auth": "oauth", "login": ["header=X-User"], "trusted_proxies": ["127.0.0.1"], "allow_users": ["*"]},
            None,
        ),
    ],
)
def test_questions_wait_only_where_a_person_can_sign_in(
    tmp_path: Path, options: dict[str, Any], url: str | None
) -> None:
    chosen = load.load({"http": "true", "state": str(tmp_path), "sandbox": "none", **options})

    async def body() -> None:
        app = App(chosen)
        access = app.host.open_access if app.host.signs_in else None  # as serve_http does
        site = HttpApp(
            chosen,
            app.host.server(),
            app.host.dispatcher(),
            access,
            end_background=app.host.end_principal,
            overview=app.create_dashboard(),
        )
        assert app.host.server().questions.url is None
        site.create_listener("http://127.0.0.1:8080")
        assert app.host.server().questions.url == url
        await app.close()

    asyncio.run(body())
