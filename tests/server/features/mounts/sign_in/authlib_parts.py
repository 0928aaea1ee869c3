"""What Authlib leaves to whoever serves with it: clients, people, codes and tokens, and requests and answers of
Starlette."""

from dataclasses import dataclass
from typing import Any

from authlib.oauth2 import OAuth2Request
from authlib.oauth2.rfc6749 import (
    AuthorizationCodeMixin,
    ClientMixin,
    JsonPayload,
    TokenMixin,
    list_to_scope,
    scope_to_list,
)
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

SCOPE = "notes:read"


@dataclass(frozen=True)
class Client(ClientMixin):
    id: str
    secret: str
    metadata: dict[str, Any]

    def get_client_id(self) -> str:
        return self.id

    def get_default_redirect_uri(self) -> None: ...

    def get_allowed_scope(self, scope: str | None) -> str | None:
        return list_to_scope([word for word in scope_to_list(scope or SCOPE) if word == SCOPE]) or None

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.metadata["redirect_uris"]

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return bool(method == self.metadata["token_endpoint_auth_method"])

    def check_response_type(self, response_type: str) -> bool:
        return response_type in self.metadata["response_types"]

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in self.metadata["grant_types"]


@dataclass(frozen=True)
class Person:
    name: str

    def get_user_id(self) -> str:
        return self.name


@dataclass(frozen=True)
class Code(AuthorizationCodeMixin):
    client: str
    person: Person
    redirect_uri: str
    scope: str
    code_challenge: str
    code_challenge_method: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


@dataclass
class Token(TokenMixin):
    """`sign_in`: the code or the first token that it came from."""

    client: Client
    person: Person
    scope: str
    sign_in: str
    is_used: bool = False

    def check_client(self, client: Client) -> bool:
        return self.client.id == client.id

    def get_scope(self) -> str:
        return self.scope


class ReadRequest(OAuth2Request):
    """A request whose body is read."""

    def __init__(self, request: Request, fields: FormData) -> None:
        super().__init__(request.method, str(request.url), headers=request.headers)
        self._fields = {name: str(value) for name, value in fields.items()}
        self.payload = BasicOAuth2Payload({**request.query_params, **self._fields})

    @property
    def form(self) -> dict[str, str]:
        return self._fields


class ReadJson(JsonPayload):
    def __init__(self, data: Any) -> None:
        self._data = data

    @property
    def data(self) -> Any:
        return self._data


class LocatedResponse(Response):
    """An answer whose `location` Authlib's extensions read and change."""

    @property
    def location(self) -> str | None:
        return self.headers.get("location")

    @location.setter
    def location(self, url: str) -> None:
        self.headers["location"] = url
