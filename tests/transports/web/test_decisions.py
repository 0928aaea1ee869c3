"""Two tabs decide the same question: one decision counts, and the other tab learns which."""

import asyncio
from pathlib import Path

from tests.server.calls.dashboards import create_dashboard
from tests.server.calls.test_pending_questions import ADA, Page, on_page
from tests.server.methods.test_remembered_approvals import RUN, set_rules
from toolgate.server.calls.policy.remembered_approvals import RememberedApprovals
from toolgate.transports.web.decisions import (
    ALLOWED,
    CALL_ENDED,
    DECLINED,
    REFUSED,
    REMEMBERED,
    ActionResult,
    Decisions,
)

ALWAYS = REMEMBERED["always"]


def late(decision: str) -> ActionResult:
    return ActionResult(f"This was decided before: {decision}", 409)


def decisions_on(page: Page) -> tuple[Decisions, RememberedApprovals]:
    app = page.held.app
    approvals = app.host.server().policy.remembered = RememberedApprovals(app.host.store())
    dashboard = create_dashboard(app)
    return Decisions(page.questions, dashboard), approvals


def test_the_first_of_two_decisions_about_an_approval_counts(tmp_path: Path) -> None:
    async def body(page: Page) -> None:
        decisions, approvals = decisions_on(page)
        set_rules(page, approve="Bash")
        with page.questions.follow(ADA) as changes:
            for is_allowed_first in (False, True):
                call = page.call("Bash", RUN)
                id = (await page.one(changes)).id
                tabs = [decisions.answer(ADA, id, "decline", {}), decisions.allow(ADA, id, "always")]
                results = await asyncio.gather(*(tabs[::-1] if is_allowed_first else tabs))
                first = ALWAYS if is_allowed_first else REFUSED
                assert results == [ActionResult(first), late(first)]
                assert len(await approvals.list_standing(ADA)) == int(is_allowed_first)
                assert (await call.json())["result"].get("isError", False) != is_allowed_first
            assert await decisions.answer("another", id, "accept", {}) == await decisions.allow(ADA, "x", "always")

    on_page(tmp_path, body)


def test_a_decision_after_the_call_has_ended_is_remembered_and_says_so(tmp_path: Path) -> None:
    async def body(page: Page) -> None:
        decisions, approvals = decisions_on(page)
        set_rules(page, approve="Bash")
        with page.questions.follow(ADA) as changes:
            call = page.call("Bash", RUN)
            id = (await page.one(changes)).id
            allowing = asyncio.ensure_future(decisions.allow(ADA, id, "always"))
            await asyncio.sleep(0)  # it is storing
            page.questions.drop_all(ADA)
            assert await allowing == ActionResult(f"{ALWAYS} {CALL_ENDED}")
            assert (await call.json())["result"]["isError"]
            assert len(await approvals.list_standing(ADA)) == 1

    on_page(tmp_path, body)


def test_a_question_is_answered_once(tmp_path: Path) -> None:
    async def body(page: Page) -> None:
        decisions, _ = decisions_on(page)
        set_rules(page, approve="Bash")
        assert (await page.said("Bash", RUN)).startswith("!")
        id = page.questions.waiting(ADA)[0].id
        results = [await decisions.answer(ADA, id, action, {}) for action in ("accept", "decline", "accept")]
        assert results == [ActionResult(ALLOWED), late(ALLOWED), late(ALLOWED)]
        assert not (await page.said("Bash", RUN)).startswith("!")
        assert (await page.said("ask_name")).startswith("!")
        id = page.questions.waiting(ADA)[0].id
        results = [await decisions.answer(ADA, id, "decline", {}), await decisions.allow(ADA, id, "session")]
        assert results == [ActionResult(DECLINED), late(DECLINED)]

    on_page(tmp_path, body)
