"""Ask a person to approve a tool call, if a rule requires that, by the tool's name and exact arguments.

Up to 2025-11-25 the question is a request to the client. From 2026-07-28 it ends the call, and the retry brings the
answer. An answer counts once, and only with the sealed requestState of its question (`Sealer`): same principal, tool
and arguments. The nonce that ensures this waits on the bus until it is used. A tool that asks a question itself runs
again on the next retry, so that requestState carries the approval on, under another nonce. If the client shows no
forms, the question waits on the server's page (`PendingQuestions`), for the same arguments and one call. Knows nothing
of the grammar of rules.

On the page a person can approve for a session or for good: `RememberedApprovals` is consulted before asking.

Decisions, as in `Call.decision`: "allowed", "denied" (by a rule), "approved", "approved_session", "approved_always",
"declined", "cancelled", "unanswered", "cannot_ask", "asked" (the retry decides), "held" (by a pin of a mount),
"switched_off" (of a mount, by the person), "closed" (a mount, while the call waited for a sign-in).
"""

import contextlib
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgate.server.base.text import escape_invisible
from toolgate.server.calls.client import InputRequired
from toolgate.server.calls.client_questions import ELICIT, SHAPES, UNREACHABLE, can_show_forms
from toolgate.server.calls.policy.rules import Rule
from toolgate.server.calls.question import to_stable_json
from toolgate.server.methods.server import Server
from toolgate.server.protocol.session import ApprovalRequest, Call
from toolgate.server.state.keys.sealed_state import LIFETIME
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import CannotAskError, StillWaitingError, ToolError, UnansweredError
from toolgate.tools.api.tool import Tool

if TYPE_CHECKING:
    from toolgate.server.calls.policy.nonces import Nonces

FORM: Mapping[str, Any] = {"type": "object", "properties": {}}  # accepting it is the answer
RESERVE = 5.0  # seconds of the hold reserved for the tool, at most a quarter
REFUSALS = {  # action → the decision, and what the person did
    "decline": ("declined", "declined"),
    "cancel": ("cancelled", "closed the question without an answer"),
}
IN_REQUEST = "approval"  # key of the question as a request to the client
TRY_NO_OTHER = "Don't work around it: say what you wanted to do, and ask how to go on."


async def require_approval(
    server: Server, call: Call, tool: Tool, arguments: dict[str, Any], context: Context
) -> Context:
    """Return the context to run the tool with, once it may run, and note the decision in the call. Raises ToolError if
    it may not, and InputRequired if the person must be asked first."""
    call.decision = "denied"  # until more is known
    verdict, rule = await server.policy.verdict(call.session, tool, arguments)
    if verdict == "denied":
        await server.on_refusal(call.session.principal, tool.name, rule)
        raise ToolError(_format_denial(tool, rule))
    # invalid arguments need no approval: the tool refuses them itself
    if verdict == "allowed" or rule is None or tool.check_arguments(arguments) is not None:
        call.decision = "allowed"
        return context
    request = _to_request(call, tool, arguments, context, rule)
    if await _is_remembered(server, call, request):
        return context
    began = time.monotonic()
    action, key = await _recall_answer(server, call, _cwd(context))
    if action is None:
        action, key = await _ask(server, call, tool, arguments, context, request), IN_REQUEST
    if action != "accept":
        call.decision = REFUSALS[action][0]
        raise ToolError(_format_refusal(action, request, is_hasty=context.answered_at_once(key)))
    if not await _is_remembered(server, call, request):
        call.decision = "approved"
    return context if call.revision.stateless else context.after(time.monotonic() - began)


async def carry_approval(server: Server, call: Call, context: Context) -> None:
    """Carry an approval over to the retry, and to no other call: the tool asks a question itself."""
    call.approval = None
    if call.decision.startswith("approved"):
        with contextlib.suppress(ToolError):  # without a nonce the person is asked again
            call.approval = (await _nonces(server).issue(call.session.principal), True, _cwd(context))


def _nonces(server: Server) -> "Nonces":
    nonces = server.policy.nonces
    assert nonces is not None  # a rule asks for approvals
    return nonces


def _cwd(context: Context) -> str:
    """Return the folder that commands have moved to, or "". An approval holds for this folder only."""
    cwd = context.caller_state.cwd
    return "" if cwd is None else str(cwd)


async def _recall_answer(server: Server, call: Call, place: str) -> tuple[str | None, str]:
    """Return the person's answer from the retry, and its question's key. The answer is None if there is none, it was
    used before, or it was given for another folder."""
    carried, call.approval = call.approval, None
    if carried is None:
        return None, ""
    nonce, given, asked_at = carried
    key = _question_key(nonce)
    if not await _nonces(server).redeem(call.session.principal, nonce) or asked_at != place:
        return None, key
    responses = call.params.get("inputResponses")
    answer = responses.get(key) if isinstance(responses, dict) else None
    if given:
        return "accept", key
    return (str(answer["action"]) if isinstance(answer, dict) and SHAPES[ELICIT](answer) else None), key


def _to_request(call: Call, tool: Tool, arguments: Mapping[str, Any], context: Context, rule: Rule) -> ApprovalRequest:
    """Return what the person is asked to approve. The time limit of a built-in shell's command does not matter."""
    from toolgate.server.calls import display  # start-up: most servers never ask

    workspace, command, folder = context.workspace, arguments.get("command"), _cwd(context)
    others = {name: value for name, value in arguments.items() if name != "command" or not isinstance(command, str)}
    covered = {name: value for name, value in others.items() if name != "timeout" or not tool.is_built_in}
    where = [folder, str(workspace.root), workspace.sandbox]  # the person sees the level, and approves it too
    call_key = [tool.name, tool.plugin or (tool.mount and f"mount:{tool.mount}"), command, covered, *where, str(rule)]
    session = call.session
    return ApprovalRequest(
        tool=_format_tool(tool),
        command=display.format_command(command) if isinstance(command, str) else None,
        arguments=display.format_arguments(others),
        folder=escape_invisible(_format_folder(folder, workspace.root)),
        rule=str(rule),
        key=hashlib.sha256(to_stable_json(call_key)).hexdigest(),
        session=f"{session.owner} {session.client} {session.right} {session.place.key}",
    )


def _format_folder(folder: str, root: Path) -> str:
    """Return where a command runs, in words for a person."""
    path = Path(folder or root)
    if path == root:
        return "your workspace"
    return f"{path.relative_to(root)} in your workspace" if path.is_relative_to(root) else str(path)


async def _is_remembered(server: Server, call: Call, request: ApprovalRequest) -> bool:
    """Return whether the person has approved this already, and note it in the call. Raises StateError."""
    remembered = server.policy.remembered
    duration = await remembered.find(call.session.principal, request) if remembered is not None else None
    if duration is not None:
        call.decision = f"approved_{duration}"
    return duration is not None


async def _ask(
    server: Server, call: Call, tool: Tool, arguments: dict[str, Any], context: Context, approving: ApprovalRequest
) -> str:
    """Return the person's action. If the answer comes with the retry, the call ends here."""
    message = format_question(tool, arguments, _cwd(context))
    request = {"method": ELICIT, "params": {"message": message, "requestedSchema": FORM}}
    if not context.can("elicitation"):
        call.decision = "cannot_ask"
        raise ToolError(_format_cannot_ask(call, tool, approving.rule))
    if call.revision.stateless and not call.is_task and can_show_forms(call):
        call.decision = "asked"
        nonce = await _nonces(server).issue(call.session.principal)
        call.approval = (nonce, False, _cwd(context))
        raise InputRequired({_question_key(nonce): request})
    hold = context.settings.hold
    timeout = LIFETIME if call.is_task else hold - min(RESERVE, hold / 4)
    call.decision = "unanswered"
    call.approving = approving
    try:
        answer = (await context.ask({IN_REQUEST: request}, timeout=timeout))[IN_REQUEST]
    except UnansweredError as error:
        if isinstance(error, StillWaitingError):
            call.decision = "asked"
        raise ToolError(
            f"{tool.name} takes a person's approval, and was not run: {error.text}. {TRY_NO_OTHER}"
        ) from None
    except CannotAskError:
        call.decision = "cannot_ask"
        raise ToolError(_format_cannot_ask(call, tool, approving.rule)) from None
    finally:
        call.approving = None
    return str(answer["action"])


def _format_refusal(action: str, request: ApprovalRequest, *, is_hasty: bool) -> str:
    what = "call" if request.command is None else "command"
    refused = f"The {'client' if is_hasty else 'person'} {REFUSALS[action][1]}"
    hasty = " at once, so probably no person saw the question" if is_hasty else ""
    return f"{refused}{hasty}; the {what} did not run. {TRY_NO_OTHER}"


def _format_denial(tool: Tool, rule: Rule | None) -> str:
    refusal = f"{tool.name} is refused here by the rule --deny {rule}"
    if rule is None or rule.pattern is None:
        return refusal
    return f"{refusal}. The operator of this server does not want this: don't spell it another way, do without it."


def _format_cannot_ask(call: Call, tool: Tool, rule: str) -> str:
    why = "it did not declare elicitation" if call.can_ask else UNREACHABLE
    return (
        f"{tool.name} takes a person's approval here (--approve {rule}), and this client can't ask for it: {why}. "
        "It was not run. Use a client that shows forms, on revision 2025-06-18 or later; or have "
        "the operator of this server exempt harmless calls with --allow."
    )


def _question_key(nonce: str) -> str:
    """Return the key of the question, which no tool can guess."""
    return f"approval-{nonce}"


def format_question(tool: Tool, arguments: Mapping[str, Any], place: str = "") -> str:
    """Return the text of the question: the call that runs if the person accepts, and how much of it is left out."""
    what = _format_tool(tool) + (f" in {escape_invisible(place)}" if place else "")
    if not arguments:
        return f"Run {what}, without arguments?"
    return f"Run {what} with these arguments?\n\n{_format_arguments(arguments)}"


def _format_tool(tool: Tool) -> str:
    """Return the tool's name, with that of its plugin."""
    if tool.mount is not None:
        return f"{tool.name} (of the mount {tool.mount})"
    return tool.name if tool.plugin is None else f"{tool.name} (of the plugin {escape_invisible(tool.plugin)})"


def _format_arguments(arguments: Mapping[str, Any]) -> str:
    from toolgate.server.calls import display  # start-up: most servers never ask

    return display.format_arguments(arguments)
