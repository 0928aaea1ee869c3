"""What clients read before anybody signs in: the resource's metadata, the authorization server's, and its keys."""

from urllib.parse import urljoin, urlsplit

from toolgate.server.cli.doctor.remote.http import ORIGIN, PROXY, PUBLIC_URL, get_list, is_secure_url, parse_issuer_url
from toolgate.server.cli.doctor.remote.target import RemoteTarget
from toolgate.server.cli.doctor.report import CheckFailedError, CheckSkippedError

METHODS = "token_endpoint_auth_methods_supported"


async def resource_metadata(target: RemoteTarget) -> str:
    named = target.challenge["resource_metadata"]
    target.require_https("the metadata", named)
    if (urlsplit(named).scheme, urlsplit(named).netloc) != (target.parts.scheme, target.parts.netloc):
        raise CheckFailedError(f"the challenge names {named}, of another origin", PUBLIC_URL)
    inserted = f"/.well-known/oauth-protected-resource{target.parts.path.rstrip('/')}"
    for url in dict.fromkeys((named, urljoin(target.url, inserted))):
        got, target.resource_metadata = await target.probe.fetch_json(
            url, "route /.well-known/oauth-protected-resource to the server too"
        )
        target.cors_documents.append((url, got))
    servers = target.resource_metadata.get("authorization_servers")
    if not isinstance(servers, list) or not servers or not isinstance(servers[0], str):
        raise CheckFailedError("it names no authorization server", "look at what answers there: it is no Toolgate")
    target.issuer = servers[0]
    target.require_https("the issuer", target.issuer)
    return named


async def same_resource(target: RemoteTarget) -> str:
    told = target.resource_metadata.get("resource")
    target.require_https("the resource", told)
    if told != target.url:
        if told == target.url.rstrip("/"):
            raise CheckFailedError(
                f"it calls itself {told}", "remove the slash at the end: clients compare letter for letter"
            )
        raise CheckFailedError(
            f"it calls itself {told}, and {target.url} was asked for: clients compare letter for letter",
            f"paste {told} instead, or start the server with --public-url {target.public_url}",
        )
    return str(told)


async def server_metadata(target: RemoteTarget) -> str:
    parts = parse_issuer_url(target.issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    tried: CheckFailedError | None = None
    for known in ("oauth-authorization-server", "openid-configuration"):
        for url in dict.fromkeys((f"{origin}/.well-known/{known}{path}", f"{origin}{path}/.well-known/{known}")):
            try:
                got, target.server_metadata = await target.probe.fetch_json(
                    url, f"route /.well-known/{known} of {origin} to the issuer"
                )
            except CheckFailedError as broken:
                tried = tried or broken
            else:
                target.cors_documents.append((url, got))
                return url
    assert tried is not None
    raise tried


async def same_issuer(target: RemoteTarget) -> str:
    told = target.server_metadata.get("issuer")
    if told != target.issuer:
        raise CheckFailedError(
            f"the metadata of {target.issuer} is of {told}", f"{PUBLIC_URL}, or --auth to what it says"
        )
    return str(told)


async def abilities(target: RemoteTarget) -> str:
    server = target.server_metadata
    for endpoint in ("authorization_endpoint", "token_endpoint", "registration_endpoint"):
        target.require_https(endpoint, server.get(endpoint))
    lacking = [name for name in ("authorization_endpoint", "token_endpoint") if not is_secure_url(server.get(name))]
    if lacking:
        raise CheckFailedError(f"{lacking[0]} is no https URL: {server.get(lacking[0])}", PUBLIC_URL)
    if "S256" not in get_list(server, "code_challenge_methods_supported"):
        raise CheckFailedError(
            "PKCE with S256 is not announced", "clients go no further: choose another issuer for --auth"
        )
    if "code" not in get_list(server, "response_types_supported"):
        raise CheckFailedError("the response type code is not announced", "choose another issuer for --auth")
    empty = [name for name, value in server.items() if value is None]
    if empty:
        raise CheckFailedError(f"{empty[0]} is null", "clients refuse that: it has to be left out")
    told = "code, S256" + (", iss" if server.get("authorization_response_iss_parameter_supported") else "")
    if server.get("client_id_metadata_document_supported") is not True or "none" in get_list(server, METHODS):
        return told
    if server.get("registration_endpoint") is None:
        raise CheckFailedError(
            f'clients come by metadata document, and those without a secret do not: no "none" in {METHODS}',
            "claude.ai needs it: have the issuer take and announce it, or choose another for --auth",
        )
    return f'{told}; no "none" in {METHODS}: claude.ai comes by registration alone'


async def keys(target: RemoteTarget) -> str:
    """Where tokens are JWTs, whoever verifies them asks for these."""
    url = target.server_metadata.get("jwks_uri")
    if url is None:
        raise CheckSkippedError("its metadata names none")
    if not is_secure_url(url):
        raise CheckFailedError(f"jwks_uri is no https URL: {url}", PUBLIC_URL)
    _, told = await target.probe.fetch_json(
        str(url), target.own_remedy(f"route {urlsplit(str(url)).path} to the server: {PROXY}")
    )
    found = get_list(told, "keys")
    if not found:
        raise CheckFailedError(
            f"{url} has no key: no token can be verified", target.own_remedy("look at the server's log")
        )
    return f"{len(found)} at {url}"


async def cors(target: RemoteTarget) -> str:
    for url, got in target.cors_documents:
        if got.headers.get("access-control-allow-origin") not in ("*", ORIGIN["Origin"]):
            raise CheckFailedError(
                f"{url} may not be read by web pages", "let the proxy keep Access-Control-Allow-Origin"
            )
    preflight = {**ORIGIN, "Access-Control-Request-Method": "POST"}
    got = await target.probe.send("OPTIONS", str(target.server_metadata.get("token_endpoint")), preflight)
    if got.status >= 300 or got.headers.get("access-control-allow-origin") not in ("*", ORIGIN["Origin"]):
        raise CheckFailedError(
            "the token endpoint refuses web pages", "clients in a browser fail: let OPTIONS pass the proxy"
        )
    return "documents and token endpoint are open to pages"
