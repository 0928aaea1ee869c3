"""Ask a token endpoint as the client that its operator has registered.

Source: RFC 6749 sections 2.3.1 and 5, RFC 8707.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import quote, quote_plus, urlsplit

import msgspec
from msgspec.structs import replace

from toolgate.server.cli.sign_in.requests import OAuthAnswer, OAuthRequests
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.sign_in import requests
from toolgate.server.features.mounts.sign_in.requests import RefusedError
from toolgate.server.features.mounts.sign_in.store import FarClient
from toolgate.server.features.mounts.upstream.errors import hide_secrets

SECRET_FIELDS = ("subject_token", "assertion", "refresh_token")
WORDS = ("error", "error_description")  # that people are shown


class GivenToken(msgspec.Struct, frozen=True):
    """A token that an endpoint has given. `lasts`: seconds, or None where the endpoint does not say."""

    text: str
    lasts: float | None


class TokenEndpoint:
    """The endpoint at `url`. `home`: the server that names it, if no operator does; one on a public address names none
    inside this network. `methods`: how clients show their secrets there, as its metadata say."""

    def __init__(self, url: str, home: str = "", methods: Sequence[str] = ()) -> None:
        self.url = url
        self._requests = OAuthRequests(home or url)
        self._method = requests.choose_method("any", methods)
        self._is_method_known = bool(methods)

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    async def ask(self, id: str, secret: str, fields: Mapping[str, str]) -> OAuthAnswer:
        """Return its answer, which is a success. Where nothing says how it wants a secret, one that the header does
        not show right is shown in the form. Raises SignInFault."""
        client = FarClient(id, secret, self._method if secret else "none")
        answer = await self._send(client, fields)
        try:
            requests.check_success(answer)
        except RefusedError as error:
            if not error.is_client or self._is_method_known or client.method != requests.BASIC:
                raise
            answer = await self._send(replace(client, method=requests.POST), fields)
            requests.check_success(answer)
            self._method = requests.POST
        self._is_method_known = True
        return answer

    async def _send(self, client: FarClient, fields: Mapping[str, str]) -> OAuthAnswer:
        """Return its answer, whose words repeat no secret."""
        answer = await requests.ask_endpoint(self._requests, self.url, client, fields)
        secrets = [*list_forms(client.id, client.secret), *(fields[name] for name in SECRET_FIELDS if name in fields)]
        said = {name: told for name, told in answer.json.items() if name in WORDS and isinstance(told, str)}
        shown = {name: hide_secrets(told, secrets) for name, told in said.items()}
        return replace(answer, json={**answer.json, **shown})


def list_forms(id: str, secret: str) -> list[str]:
    """Return a client's secret in each form in which a request has it."""
    return [secret, quote(secret, safe=""), quote_plus(secret), requests.encode_basic(id, secret)]


def read_given(answer: OAuthAnswer) -> GivenToken:
    """Return the access token of an answer. Raises SignInFault."""
    return GivenToken(requests.read_bearer(answer), requests.read_lifetime(answer))


def describe_target(config: MountConfig) -> dict[str, str]:
    """Return the fields that say what a token is for: the URL of the mount, or the audience in its place."""
    target = {"resource": config.url} if config.audience is None else {"audience": config.audience}
    fields = {**target, "scope": " ".join(config.scopes)}
    return {name: value for name, value in fields.items() if value}
