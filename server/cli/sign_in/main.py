"""Sign in to a server in the browser, and sign out (`toolgate login URL`, `toolgate logout URL`)."""

import base64
import hashlib
import secrets
import shlex
import shutil
import subprocess
import sys
from urllib.parse import urlencode

import msgspec

from toolgate.server.cli.mcp_client.client import McpClientError
from toolgate.server.cli.sign_in.credentials import CredentialStore, SignIn, apply_tokens
from toolgate.server.cli.sign_in.discovery import IssuerMetadata, discover
from toolgate.server.cli.sign_in.loopback import LoopbackReceiver
from toolgate.server.cli.sign_in.requests import LoginError, OAuthRequests, normalize_url
from toolgate.server.config.load import Config
from toolgate.server.protocol.errors import UsageError
from toolgate.server.text import escape_unprintable

DONE, FAULT = 0, 1
CLIENT_NAME = "toolgate command line"
HOW_TO_REGISTER = "have its operator run: toolgate client add NAME http://127.0.0.1/callback, and give --client ID"


async def login(config: Config, *, url: str, client: str | None) -> int:
    """Sign in to the server at `url`. `client` is the id of a client that is registered there."""
    url = normalize_url(url)
    requests = OAuthRequests(url)
    server, scopes = await discover(requests, url)
    receiver = LoopbackReceiver(server.issuer, sends_issuer=server.sends_issuer)
    verifier = secrets.token_urlsafe(48)
    async with receiver.listen():
        client_id = client or await _register(requests, server, receiver.redirect_uri)
        query = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": receiver.redirect_uri,
            "code_challenge": base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("="),
            "code_challenge_method": "S256",
            "resource": url,
            "state": receiver.state,
            **({"scope": " ".join(scopes)} if scopes else {}),
        }
        endpoint = server.authorization_endpoint
        authorize_url = f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"
        _tell_person(config, authorize_url, receiver.lead_to(authorize_url))
        code = await receiver.wait()
    fields = {"grant_type": "authorization_code", "code": code, "redirect_uri": receiver.redirect_uri}
    fields |= {"client_id": client_id, "code_verifier": verifier, "resource": url}
    answer = await requests.post_form(server.token_endpoint, fields)
    empty = SignIn(url, server.issuer, server.token_endpoint, server.revocation_endpoint, client_id, "", 0.0)
    found = apply_tokens(empty, answer)
    store = CredentialStore(config.sign_in_folder)
    async with store.hold_lock(url):
        store.write(found)
    print(f"signed in to {url}")
    if found.scope:
        print(f"you allowed: {escape_unprintable(found.scope)}", file=sys.stderr)
    print(f"try it: toolgate tools --url {url}", file=sys.stderr)
    return DONE


async def logout(config: Config, *, url: str) -> int:
    """End the access of this machine, and remove its tokens."""
    url = normalize_url(url)
    store = CredentialStore(config.sign_in_folder)
    if not store.has(url):
        print(f"toolgate: nobody is signed in to {url} here", file=sys.stderr)
        return FAULT
    async with store.hold_lock(url):
        fault = await _revoke(store, url)
        store.remove(url)
    print(f"signed out of {url}")
    if fault:
        print(f"toolgate: the server was not told ({fault}): end the access on its account page", file=sys.stderr)
    return DONE


async def _revoke(store: CredentialStore, url: str) -> str:
    """Revoke the tokens at the server (RFC 7009), and return why that failed, or ""."""
    try:
        found = store.read(url, is_ending=True)
        if found is None:  # another process has signed out
            return ""
        if not found.revocation_endpoint:
            return "it takes no revocations"
        fields = {"token": found.refresh_token or found.access_token, "client_id": found.client_id}
        answer = await OAuthRequests(url).post_form(found.revocation_endpoint, fields)
    except McpClientError as error:
        return escape_unprintable(str(error))
    except (UsageError, OSError):
        return "the tokens can't be read here"
    return "" if answer.status == 200 else answer.error


async def _register(requests: OAuthRequests, server: IssuerMetadata, redirect_uri: str) -> str:
    """Register a client for this sign-in (RFC 7591), and return its id."""
    if not server.registration_endpoint:
        raise LoginError(f"{server.issuer} registers no clients: {HOW_TO_REGISTER}")
    client = {
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
    }
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    answer = await requests.send("POST", server.registration_endpoint, headers, msgspec.json.encode(client))
    id = answer.json.get("client_id")
    if answer.status not in (200, 201) or not isinstance(id, str) or not 0 < len(id) <= 2_000:
        raise LoginError(f"{server.registration_endpoint} refuses: {answer.error}; {HOW_TO_REGISTER}")
    return id


def _tell_person(config: Config, authorize_url: str, local_url: str) -> None:
    """Open the browser, and print where to sign in without one."""
    opener = find_opener(config)
    if opener:
        _open(config, [*opener, local_url])
    head = "sign in with the browser that opens; if none does, open" if opener else "sign in with a browser: open"
    print(f"{head}:\n\n  {authorize_url}\n", file=sys.stderr)
    if sys.stdin.isatty():
        print("if the browser is on another machine and ends at a page it can't open, paste its URL:", file=sys.stderr)


def find_opener(config: Config) -> list[str]:
    """Return the command that opens a URL in a browser with windows, or []."""
    environment = config.environment
    if environment.get("BROWSER"):
        try:
            return shlex.split(environment["BROWSER"])
        except ValueError:  # a quote is open
            return []
    if sys.platform == "darwin":
        return ["/usr/bin/open"]
    if not any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME")):
        return []
    found = [shutil.which(name, path=environment.get("PATH")) for name in ("xdg-open", "wslview")]
    return [path for path in found if path][:1]


def _open(config: Config, command: list[str]) -> None:
    quiet = subprocess.DEVNULL
    try:
        subprocess.Popen(  # the person's own browser
            command, stdin=quiet, stdout=quiet, stderr=quiet, env=config.own_environment, start_new_session=True
        )
    except (OSError, ValueError):
        return  # the URL is printed
