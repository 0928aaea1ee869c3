"""Show a person's account: the apps they approved, what they always allow, their browsers and their password."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from toolgate.server.auth.login.accounts import Person, SignInError
from toolgate.server.auth.login.methods import REFUSED, THROTTLED
from toolgate.server.auth.login.throttle import ThrottledError
from toolgate.server.base.principals.scopes import OFFLINE
from toolgate.server.base.principals.sign_in_methods import PASSWORD
from toolgate.server.base.reports.page_part import ALREADY_ENDED
from toolgate.transports.web.consent import describe_scope
from toolgate.transports.web.http import read_form, with_headers
from toolgate.transports.web.page_context import (
    APPROVAL_ENDED,
    NO_ACTION,
    REVOKED,
    Visitor,
    format_sentence,
    principal_of,
)
from toolgate.transports.web.sign_in_context import SESSION, SignInContext, format_wait

if TYPE_CHECKING:
    from toolgate.server.auth.grants import GrantSummary
    from toolgate.server.calls.policy.remembered_approvals import RememberedApprovals

ALREADY_REVOKED = "There is nothing to revoke: that access has already ended."  # for people
SIGNED_OUT = "That browser is signed out."
CHANGE_REFUSED = "The current password is wrong. Nothing was changed."
DIFFERENT = "The two new passwords differ. Nothing was changed."

log = logging.getLogger("toolgate.auth")

Result = tuple[str, bool]  # a sentence for the person, and whether it is good news
Act = Callable[[Visitor, str], Awaitable[Result]]


class AccountPage:
    """`sentences` says what each scope means; `approvals` are the permanent ones, None where no call needs approval."""

    def __init__(
        self, context: SignInContext, sentences: Mapping[str, str], approvals: "RememberedApprovals | None" = None
    ) -> None:
        self._context = context
        self._sentences = sentences
        self._approvals = approvals
        self._actions: dict[str, Act] = {  # the name of a button → what it does
            "grant": self._revoke_grant,
            "forget": self._end_approval,
            "browser": self._end_browser,
        }

    async def page(
        self, request: Request, status: int = 200, done: str | None = None, problem: str | None = None
    ) -> Response:
        visitor = await self._context.identify_visitor(request)
        if visitor.person is None:
            return self._context.redirect_to("login")
        csrf, cookies = self._context.csrf_token(request, visitor, "account", "")
        grants, count = await self._context.authorization.grants.list_newest(visitor.person)
        approvals = self._approvals
        sessions = self._context.sign_in.sessions
        page = self._context.pages.render(
            "account",
            status,
            person=visitor.person,
            can_sign_out=visitor.key != "",
            has_password=self._has_password(visitor.person),
            grants=grants,
            more_grants=count - len(grants),
            approvals=await approvals.list_standing(principal_of(visitor)) if approvals is not None else [],
            browsers=await sessions.list_browsers(visitor.person, self._context.cookies.get(request, SESSION)),
            meanings=self._list_meanings(grants),
            csrf=csrf,
            done=done,
            problem=problem,
        )
        return with_headers(page, *cookies)

    def _list_meanings(self, grants: "Sequence[GrantSummary]") -> list[tuple[str, str]]:
        """Return each scope of the grants with its meaning, once. `offline_access` stands as its own meaning."""
        scopes = dict.fromkeys(scope for grant in grants for scope in grant.scopes if scope != OFFLINE)
        return [(scope, describe_scope(self._sentences, scope)) for scope in scopes]

    async def act(self, request: Request) -> Response:
        """Do a button's action, and answer with the page itself: with the result in a URL, any link could claim it."""
        fields = dict(await read_form(request))
        visitor = await self._context.identify_visitor(request)
        if visitor.person is None:
            return self._context.redirect_to("login")
        if (fault := self._context.find_csrf_fault(request, visitor, fields, "account", "")) is not None:
            return await self.page(request, 403, problem=fault)
        if "new-password" in fields:
            return await self._change_password(request, visitor.person, fields)
        names = [name for name in self._actions if name in fields]
        if len(names) != 1:
            return await self.page(request, 400, problem=NO_ACTION)
        sentence, is_good = await self._actions[names[0]](visitor, fields[names[0]])
        return await self.page(request, done=sentence) if is_good else await self.page(request, 404, problem=sentence)

    async def _revoke_grant(self, visitor: Visitor, id: str) -> Result:
        is_ended = await self._context.authorization.grants.revoke_grant(visitor.person, id)
        return (REVOKED, True) if is_ended else (ALREADY_REVOKED, False)

    async def _end_approval(self, visitor: Visitor, id: str) -> Result:
        is_ended = self._approvals is not None and await self._approvals.end(principal_of(visitor), id)
        return (APPROVAL_ENDED, True) if is_ended else (ALREADY_ENDED, False)

    async def _end_browser(self, visitor: Visitor, id: str) -> Result:
        assert visitor.person is not None
        is_ended = await self._context.sign_in.sessions.end_browser(visitor.person, id)
        return (SIGNED_OUT, True) if is_ended else (ALREADY_ENDED, False)

    def _has_password(self, person: Person) -> bool:
        return person.has_account and self._context.sign_in.accounts is not None

    async def _change_password(self, request: Request, person: Person, fields: Mapping[str, str]) -> Response:
        """Change the password if the old one is right, sign all other browsers out, and keep this one signed in."""
        accounts, address = self._context.sign_in.accounts, self._context.client_address(request)
        if accounts is None or not self._has_password(person):
            return await self.page(request, 404, problem=NO_ACTION)
        new = fields["new-password"]
        if new != fields.get("again"):
            return await self.page(request, 400, problem=DIFFERENT)
        device = self._context.device_of(request, person.name)
        try:
            known = await accounts.verify_password(person.name, fields.get("password", ""), address, device)
            if known is None or known.subject != person.subject:
                self._context.sign_in.record(REFUSED, PASSWORD.name, address, person.name)
                return await self.page(request, 403, problem=CHANGE_REFUSED)
            await accounts.set_password(person.name, new)
            log.info("password changed: from %s as %s", address or "unknown", person.name)
        except ThrottledError as error:
            self._context.sign_in.record(THROTTLED, PASSWORD.name, address, person.name)
            page = await self.page(request, 429, problem=format_wait(error))
            return with_headers(page, ("retry-after", str(error.wait)))
        except SignInError as error:
            return await self.page(request, 400, problem=format_sentence(error))
        page = self._context.pages.notice(
            200,
            "Your password is changed",
            "All other browsers are signed out. Apps you have approved stay connected.",
            isolated=True,
            again=self._context.path_of("account"),
            again_label="Go to your account",
        )
        page = await self._context.start_session(request, person, page)
        return with_headers(page, *await self._context.device_cookies(person))
