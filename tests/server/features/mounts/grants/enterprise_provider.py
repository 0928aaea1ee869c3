"""An identity provider that gives refresh tokens, and exchanges its ID tokens for grants (ID-JAG) and others."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from tests.server.auth.fake_identity_providers import CLIENT, SECRET, Provider, read_credentials
from tests.server.features.mounts.grants.far_grants import CLIENT as FAR_CLIENT
from tests.server.features.mounts.grants.far_grants import read_claims
from toolgate.server.auth.tokens import jose

KIND = "urn:ietf:params:oauth:token-type:"


@dataclass
class EnterpriseProvider(Provider):
    """What it knows and counts beside a Provider.

    subject: who signs in next; lifetime: of an ID token, in seconds
    refresh: usable refresh token → subject; used: those that were used
    revoked: tokens that it was to revoke; revokes: whether it has an endpoint for that
    exchanged: the forms of exchanges; answers: in place of the next answers to them
    """

    subject: str = "ada"
    lifetime: float = 300
    offers_refresh: bool = True
    refresh: dict[str, str] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    exchanged: list[dict[str, str]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    id_tokens: list[str] = field(default_factory=list)
    grants: list[str] = field(default_factory=list)
    revokes: bool = True
    revoked: list[str] = field(default_factory=list)

    def issue_id_token(self, **more: Any) -> str:
        token = super().issue_id_token(**{"sub": self.subject, "exp": int(time.time() + self.lifetime), **more})
        self.id_tokens.append(token)
        return token

    def issue(self, subject: str) -> dict[str, Any]:
        again = f"idp-rt-{secrets.token_hex(12)}"
        self.refresh[again] = subject
        return {"refresh_token": again}

    def _own(self) -> dict[str, Any]:
        more = {"revocation_endpoint": f"{self.url}/revoke"} if self.revokes else {}
        return {**super()._own(), **more, "scopes_supported": ["openid", "email", "profile", "offline_access"]}

    def answer(self, path: str, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        if path != "/revoke":
            return super().answer(path, form, authorization)
        assert self.revokes and read_credentials(form, authorization) == (CLIENT, SECRET)
        self.revoked.append(form["token"])
        return 200, {}

    def _redeemed(self, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        if form["grant_type"] == "authorization_code":
            status, told = super()._redeemed(form, authorization)
            is_offline = self.offers_refresh and "offline_access" in self.codes[form["code"]]["scope"].split()
            return status, {**told, **(self.issue(self.subject) if is_offline else {})}
        assert read_credentials(form, authorization) == (CLIENT, SECRET)
        if form["grant_type"] == "refresh_token":
            return self._refreshed(form["refresh_token"])
        self.exchanged.append(form)
        if self.answers:
            status, told = self.answers.pop(0)
            return status, told
        return self._exchanged(form)

    def _refreshed(self, token: str) -> tuple[int, Any]:
        subject = self.refresh.pop(token, None)
        self.used.append(token)
        if subject is None:
            return 400, {"error": "invalid_grant"}
        told = {"access_token": "of-the-provider", "token_type": "Bearer"}
        return 200, {**told, "id_token": self.issue_id_token(sub=subject), **self.issue(subject)}

    def _exchanged(self, form: dict[str, str]) -> tuple[int, Any]:
        """Return a grant for what the form asks for."""
        assert form["subject_token"] in self.id_tokens and form["subject_token_type"] == f"{KIND}id_token"
        assert form["requested_token_type"] == f"{KIND}id-jag"
        now = int(time.time())
        who = read_claims(form["subject_token"])
        assert who["exp"] > now
        claims = {"iss": self.url, "sub": who["sub"], "aud": form["audience"], "resource": form["resource"]}
        claims |= {"client_id": FAR_CLIENT, "jti": secrets.token_hex(8), "iat": now, "exp": now + 300}
        claims |= {"scope": form["scope"]} if "scope" in form else {}
        grant = jose.sign(claims, self.key, "oauth-id-jag+jwt")
        self.grants.append(grant)
        return 200, {"issued_token_type": f"{KIND}id-jag", "access_token": grant, "token_type": "N_A"}
