"""Approvals for a session and for good: what they cover, what they never widen, and how they end."""

from pathlib import Path

from tests.server.calls.test_pending_questions import ADA, Page, on_page
from tests.servers.http_in_process import named
from toolgate.server.calls.policy.remembered_approvals import (
    MAX_FOR_GOOD,
    Duration,
    RememberedApprovals,
)
from toolgate.server.calls.policy.rules import Rules, parse_rules
from toolgate.server.calls.policy.session_approvals import MAX_IN_SESSIONS, SESSION_LIFETIME
from toolgate.server.methods import tools as tools_method
from toolgate.server.protocol.session import ApprovalRequest

RUN = {"command": "echo run >> runs"}


def set_rules(page: Page, *, approve: str, deny: str = "") -> None:
    page.held.app.host.server().policy.rules = Rules(
        approve=parse_rules([approve]), deny=parse_rules([deny] if deny else [])
    )


async def approve(page: Page, duration: Duration, approvals: RememberedApprovals) -> None:
    """Let ada approve the waiting call, as the page does."""
    waiting = await page.asked()
    assert waiting.approval is not None
    await approvals.add(ADA, waiting.approval, waiting.client, duration)
    assert page.questions.settle(ADA, waiting.id) is None
    assert page.questions.waiting(ADA) == []


def test_an_approval_is_remembered_for_exactly_this_call_under_this_rule(tmp_path: Path) -> None:
    decisions: list[str] = []
    ahead: list[float] = [0.0]

    async def body(page: Page) -> None:
        policy = page.held.app.host.server().policy
        approvals = policy.remembered = RememberedApprovals(page.held.app.host.store(), lambda: 1e9 + ahead[-1])
        run = tools_method.run_tool

        async def noted(server, call, *more):  # type: ignore[no-untyped-def]
            try:
                return await run(server, call, *more)
            finally:
                decisions.append(call.decision)

        tools_method.run_tool = noted
        try:
            for duration in ("session", "always"):
                set_rules(page, approve="Bash(echo*)")
                assert (await page.said("Bash", RUN)).startswith("!")
                await approve(page, duration, approvals)  # type: ignore[arg-type]
                for arguments in (RUN, RUN, {**RUN, "timeout": 5_000}):
                    assert not (await page.said("Bash", arguments)).startswith("!")
                assert (await page.said("Bash", {"command": RUN["command"] + " "})).startswith("!")
                assert (await page.said("Bash", RUN, "bob")).startswith("!")
                assert (await page.said("BackgroundBash", RUN)).startswith(
                    "background task"
                )  # another tool: no rule asks
                set_rules(page, approve="Bash(*)")  # another rule, which the person has not answered
                assert (await page.said("Bash", RUN)).startswith("!")
                set_rules(page, approve="Bash(echo*)", deny="Bash(*run*)")
                assert "refused here by the rule --deny" in await page.said("Bash", RUN)
                page.questions.drop_all(ADA)
                page.questions.drop_all(named("bob"))
                ahead.append(ahead[-1] + SESSION_LIFETIME)  # ends the one for the session
            set_rules(page, approve="Bash(echo*)")
            (standing,) = await approvals.list_standing(ADA)
            assert (standing.tool, standing.shown, standing.rule) == ("Bash", RUN["command"], "Bash(echo*)")
            assert (standing.folder, standing.client, standing.used_at) == ("your workspace", "client", 1e9 + ahead[1])
            assert not await approvals.end(named("bob"), standing.id)
            await page.said("Bash", {"command": "mkdir -p deep && cd deep"})
            page.held.app.host.server().policy.rules = Rules()
            await page.said("Bash", {"command": "mkdir -p deep && cd deep"})
            set_rules(page, approve="Bash(echo*)")
            assert (await page.said("Bash", RUN)).startswith("!")  # in another folder
            assert await approvals.end(ADA, standing.id) and not await approvals.end(ADA, standing.id)
            assert await approvals.list_standing(ADA) == []
            page.questions.drop_all(ADA)
        finally:
            tools_method.run_tool = run
        assert decisions[:5] == ["asked", "approved_session", "approved_session", "approved_session", "asked"]
        assert decisions.count("approved_always") == 3 and decisions.count("denied") == 2

    on_page(tmp_path, body)


def test_an_approval_under_one_sandbox_level_does_not_hold_under_another(tmp_path: Path) -> None:
    async def body(page: Page) -> None:
        approvals = page.held.app.host.server().policy.remembered = RememberedApprovals(page.held.app.host.store())
        set_rules(page, approve="Bash(echo*)")
        assert (await page.said("Bash", RUN)).startswith("!")
        await approve(page, "always", approvals)
        assert not (await page.said("Bash", RUN)).startswith("!")
        workspace = page.held.app.host.workspaces().find(ADA)
        assert workspace is not None
        workspace.sandbox = "uid"  # as after a restart with another --sandbox
        assert (await page.said("Bash", RUN)).startswith("!")
        page.questions.drop_all(ADA)

    on_page(tmp_path, body)


def test_a_session_has_a_limited_number_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    async def body(page: Page) -> None:
        approvals = RememberedApprovals(page.held.app.host.store())
        requests = [ApprovalRequest("Bash", "", "", "", "Bash", f"key-{n}", "one") for n in range(MAX_IN_SESSIONS + 1)]
        for request in (*requests[:-1], requests[0], requests[-1]):  # the first is renewed before the last comes
            await approvals.add(ADA, request, "client", "session")
        dropped = [request.key for request in requests if await approvals.find(ADA, request) is None]
        assert dropped == ["key-1"]

    on_page(tmp_path, body)


def test_a_person_has_a_limited_number_and_all_end_with_the_person(tmp_path: Path) -> None:
    async def body(page: Page) -> None:
        approvals = RememberedApprovals(page.held.app.host.store())
        for n in range(MAX_FOR_GOOD + 1):
            asked = ApprovalRequest("Bash", f"echo {n}", "", "your workspace", "Bash", f"key-{n}", "")
            await approvals.add(ADA, asked, "client", "always")
        kept = await approvals.list_standing(ADA)
        assert len(kept) == MAX_FOR_GOOD and "echo 0" not in [each.shown for each in kept]
        assert page.held.app.host.server().policy.remembered is None  # this start has no --approve
        await page.held.app.host.end_principal(ADA)
        assert await approvals.list_standing(ADA) == []
        assert await approvals.find(ADA, ApprovalRequest("Bash", "echo 1", "", "", "Bash", "key-1", "")) is None

    on_page(tmp_path, body)


def test_approvals_of_two_people_are_apart(tmp_path: Path) -> None:
    async def body(page: Page) -> None:
        approvals, bob = RememberedApprovals(page.held.app.host.store()), named("bob")
        requests = {who: ApprovalRequest("Bash", who, "", "", "Bash", f"key of {who}", "") for who in (ADA, bob)}
        for who, request in requests.items():
            await approvals.add(who, request, "client", "always")
        (standing,) = await approvals.list_standing(ADA)
        assert not await approvals.end(bob, standing.id)
        assert await approvals.find(bob, requests[ADA]) is None
        await approvals.end_all(bob)
        assert await approvals.list_standing(ADA) == [standing]

    on_page(tmp_path, body)
