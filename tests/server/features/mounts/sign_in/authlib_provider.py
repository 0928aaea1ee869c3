"""Authlib's authorization server for a mounted server: `python -m …authlib_provider PORT RESOURCE METHOD… [OPTION…]`.

METHOD is how clients show who they are at its token endpoint, such as `none`. Its issuer has a path. It rotates refresh
tokens, and revokes all tokens of a sign-in when one is used twice. It writes each event that a test reads as a line.
What it has issued is in memory.
"""

import argparse
import html
import os
import secrets
from typing import Any

import uvicorn
from authlib.oauth2 import AuthorizationServer, OAuth2Error, OAuth2Request
from authlib.oauth2.rfc6749 import JsonRequest, grants
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8414 import AuthorizationServerMetadata
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from authlib.oauth2.rfc9207 import IssuerParameter
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from tests.server.features.mounts.sign_in.authlib_parts import (
    SCOPE,
    Client,
    Code,
    LocatedResponse,
    Person,
    ReadJson,
    ReadRequest,
    Token,
)

PAGE = '<!doctype html><form method="post" action="{}"><input name="login"><button>Allow</button></form>'

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("resource")
parser.add_argument("method", nargs="+")
parser.add_argument("--lifetime", type=int, default=5, help="seconds of an access token")
parser.add_argument("--tls", metavar="FILE", help="a key and a certificate of localhost")
options = parser.parse_args()
ISSUER = f"{'https://localhost' if options.tls else 'http://127.0.0.1'}:{options.port}/notes"
KEYS = KeySet([RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256"}, auto_kid=True)])  # a set: tokens name it
if not options.tls:
    os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"

METADATA = AuthorizationServerMetadata(
    issuer=ISSUER,
    authorization_endpoint=f"{ISSUER}/authorize",
    token_endpoint=f"{ISSUER}/token",
    registration_endpoint=f"{ISSUER}/register",
    revocation_endpoint=f"{ISSUER}/revoke",
    jwks_uri=f"{ISSUER}/jwks",
    scopes_supported=[SCOPE],
    response_types_supported=["code"],
    grant_types_supported=["authorization_code", "refresh_token"],
    token_endpoint_auth_methods_supported=options.method,
    revocation_endpoint_auth_methods_supported=options.method,
    code_challenge_methods_supported=["S256"],
    authorization_response_iss_parameter_supported=True,
)
METADATA.validate()


clients: dict[str, Client] = {}
codes: dict[str, Code] = {}
refresh_tokens: dict[str, Token] = {}


def revoke_sign_in(sign_in: str) -> None:
    for value in [value for value, token in refresh_tokens.items() if token.sign_in == sign_in]:
        del refresh_tokens[value]
    print("grant.revoked", flush=True)


class Server(AuthorizationServer):
    def query_client(self, client_id: str) -> Client | None:
        return clients.get(client_id)

    def save_token(self, token: dict[str, Any], request: OAuth2Request) -> None:
        before = request.refresh_token
        sign_in = before.sign_in if before else token["refresh_token"]
        refresh_tokens[token["refresh_token"]] = Token(request.client, request.user, token["scope"], sign_in)
        print(f"grant.success {request.payload.grant_type}", flush=True)

    def create_oauth2_request(self, request: tuple[Request, FormData] | OAuth2Request) -> OAuth2Request:
        return request if isinstance(request, OAuth2Request) else ReadRequest(*request)

    def create_json_request(self, request: tuple[Request, Any]) -> JsonRequest:
        told, data = request
        made = JsonRequest(told.method, str(told.url), told.headers)
        made.payload = ReadJson(data)
        return made

    def handle_response(self, status: int, body: Any, headers: list[tuple[str, str]]) -> Response:
        if isinstance(body, dict) and "error" in body:
            print(f"grant.error {body['error']}", flush=True)
        answer = JSONResponse(body, status) if isinstance(body, dict) else LocatedResponse(body, status)
        answer.headers.update(dict(headers))
        return answer

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None: ...


class CodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = options.method

    def save_authorization_code(self, code: str, request: OAuth2Request) -> None:
        told = request.payload.data
        challenge = told["code_challenge"], told["code_challenge_method"]
        codes[code] = Code(request.client.id, request.user, told["redirect_uri"], request.scope, *challenge)

    def query_authorization_code(self, code: str, client: Client) -> Code | None:
        found = codes.get(code)
        return found if found and found.client == client.id else None

    def delete_authorization_code(self, authorization_code: Code) -> None:
        codes.pop(self.request.form["code"])

    def authenticate_user(self, authorization_code: Code) -> Person:
        return authorization_code.person


class RefreshGrant(grants.RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = options.method
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token: str) -> Token | None:
        found = refresh_tokens.get(refresh_token)
        if found and found.is_used:
            revoke_sign_in(found.sign_in)
            return None
        return found

    def authenticate_user(self, refresh_token: Token) -> Person:
        return refresh_token.person

    def revoke_old_credential(self, refresh_token: Token) -> None:
        refresh_token.is_used = True


class Registration(ClientRegistrationEndpoint):
    def authenticate_token(self, request: JsonRequest) -> str:
        return "anybody"

    def get_server_metadata(self) -> AuthorizationServerMetadata:
        return METADATA

    def save_client(self, client_info: dict[str, Any], client_metadata: dict[str, Any], request: JsonRequest) -> Client:
        client = Client(client_info["client_id"], client_info["client_secret"], client_metadata)
        clients[client.id] = client
        return client


class Revocation(RevocationEndpoint):
    CLIENT_AUTH_METHODS = options.method

    def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
        return refresh_tokens.get(token_string)

    def revoke_token(self, token: Token, request: OAuth2Request) -> None:
        revoke_sign_in(token.sign_in)


class Issuer(IssuerParameter):
    def get_issuer(self) -> str:
        return ISSUER


class AccessTokens(JWTBearerTokenGenerator):
    def get_jwks(self) -> KeySet:
        return KEYS

    def get_audiences(self, client: Client, user: Person, scope: str) -> str:
        return str(options.resource)

    def get_extra_claims(self, client: Client, grant_type: str, user: Person, scope: str) -> dict[str, str]:
        return {"email": f"{user.name}@example.com"}


server = Server([SCOPE])
tokens = AccessTokens(ISSUER, "RS256", lambda **_: secrets.token_urlsafe(), options.lifetime)
server.register_token_generator("default", tokens)
server.register_grant(CodeGrant, [CodeChallenge(required=True)])
server.register_grant(RefreshGrant)
server.register_endpoint(Registration)
server.register_endpoint(Revocation)
server.register_extension(Issuer())


async def authorize(request: Request) -> Response:
    read = ReadRequest(request, await request.form())
    try:
        grant = server.get_consent_grant(read)
    except OAuth2Error as error:
        return JSONResponse(dict(error.get_body()), 400)
    if request.method == "GET":
        return HTMLResponse(PAGE.format(html.escape(str(request.url))))
    answer: Response = server.create_authorization_response(read, Person(read.form["login"]), grant)
    return answer


async def answer_token(request: Request) -> Response:
    answer: Response = server.create_token_response((request, await request.form()))
    return answer


async def register(request: Request) -> Response:
    answer: Response = server.create_endpoint_response("client_registration", (request, await request.json()))
    return answer


async def revoke(request: Request) -> Response:
    answer: Response = server.create_endpoint_response("revocation", (request, await request.form()))
    return answer


async def show_keys(request: Request) -> Response:
    return JSONResponse(KEYS.as_dict(private=False))


async def show_metadata(request: Request) -> Response:
    return JSONResponse(METADATA)


app = Starlette(
    routes=[
        Route("/notes/authorize", authorize, methods=["GET", "POST"]),
        Route("/notes/token", answer_token, methods=["POST"]),
        Route("/notes/register", register, methods=["POST"]),
        Route("/notes/revoke", revoke, methods=["POST"]),
        Route("/notes/jwks", show_keys),
        Route("/.well-known/oauth-authorization-server/notes", show_metadata),
    ]
)

if __name__ == "__main__":
    files = {"ssl_certfile": options.tls, "ssl_keyfile": options.tls} if options.tls else {}
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="info", **files)
