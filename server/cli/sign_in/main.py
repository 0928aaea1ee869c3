"""Sign in to a server in the browser, and sign out (`toolgate login URL`, `toolgate logout URL`)."""

import secrets
import shlex
import shutil
import subprocess
import sys
from urllib.parse import urlencode, urlsplit

from toolgate.server.base.errors import UsageError
from toolgate.server.base.pkce import create_challenge
from toolgate.server.base.text import escape_unprintable
from toolgate.server.cli.mcp_client.client import McpClientError
from toolgate.server.cli.mcp_client.http import get_origin
from toolgate.server.cli.sign_in.client_choice import choose_client, find_port
from toolgate.server.cli.sign_in.credentials import CredentialStore, SignIn, apply_tokens
from toolgate.server.cli.sign_in.discovery import IssuerMetadata, discover
from toolgate.server.cli.sign_in.loopback import LoopbackReceiver
from toolgate.server.cli.sign_in.requests import OAuthRequests, normalize_url
from toolgate.server.config.load import Config

DONE, FAULT = 0, 1


async def login(config: Config, *, url: str, client: str | None) -> int:
    """Sign in to the server at `url`, and end the earlier sign-in of this machine. `client` is the id of a client that
    the server knows."""
    url = normalize_url(url)
    requests = OAuthRequests(url)
    server, scopes = await discover(requests, url)
    store = CredentialStore(config.sign_in_folder)
    earlier = _find_earlier(store, url)
    receiver = LoopbackReceiver(server.issuer, sends_issuer=server.sends_issuer)
    verifier = secrets.token_urlsafe(48)
    async with receiver.listen(0 if client else find_port(server, earlier)):
        chosen = await choose_client(requests, server, receiver.redirect_uri, client, earlier)
        query = {
            "response_type": "code",
            "client_id": chosen.id,
            "redirect_uri": receiver.redirect_uri,
            **create_challenge(verifier),
            "resource": url,
            "state": receiver.state,
            **({"scope": " ".join(scopes)} if scopes else {}),
        }
        _warn_of_page_elsewhere(server)
        endpoint = server.authorization_endpoint
        authorize_url = f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"
        _tell_person(config, authorize_url, receiver.lead_to(authorize_url))
        code = await receiver.wait()
    fields = {"grant_type": "authorization_code", "code": code, "redirect_uri": receiver.redirect_uri}
    fields |= {"client_id": chosen.id, "code_verifier": verifier, "resource": url}
    answer = await requests.post_form(server.token_endpoint, fields)
    endpoints = (server.issuer, server.token_endpoint, server.revocation_endpoint)
    signed_in = apply_tokens(SignIn(url, *endpoints, chosen.id, "", 0.0, redirect_port=chosen.port), answer)
    async with store.hold_lock(url):
        earlier = _find_earlier(store, url)  # another process may have renewed it, or signed in meanwhile
        store.write(signed_in)
    fault = await _revoke(requests, earlier) if earlier is not None and not _shares_token(earlier, signed_in) else ""
    print(f"signed in to {url}")
    if fault:
        print(f"toolgate: the earlier sign-in goes on ({fault}): end it on the account page", file=sys.stderr)
    if signed_in.scope:
        print(f"you allowed: {escape_unprintable(signed_in.scope)}", file=sys.stderr)
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
        fault = await _end_stored(store, url)
        store.remove(url)
    print(f"signed out of {url}")
    if fault:
        print(f"toolgate: the server was not told ({fault}): end the access on its account page", file=sys.stderr)
    return DONE


async def _end_stored(store: CredentialStore, url: str) -> str:
    """Revoke the stored tokens at the server, and return why that failed, or ""."""
    try:
        signed_in = store.read(url, is_ending=True)
    except (UsageError, OSError):
        return "the tokens can't be read here"
    return await _revoke(OAuthRequests(url), signed_in) if signed_in is not None else ""  # None: ended meanwhile


def _find_earlier(store: CredentialStore, url: str) -> SignIn | None:
    """Return the sign-in that a new one replaces, or None, also for one that can't be read."""
    try:
        return store.read(url, is_ending=True)
    except (UsageError, OSError):
        return None


def _shares_token(earlier: SignIn, signed_in: SignIn) -> bool:
    """Return whether revoking the earlier sign-in would revoke the new one."""
    return _token_to_revoke(earlier) in (signed_in.refresh_token, signed_in.access_token)


def _token_to_revoke(signed_in: SignIn) -> str:
    return signed_in.refresh_token or signed_in.access_token


async def _revoke(requests: OAuthRequests, signed_in: SignIn) -> str:
    """Revoke the tokens at the server (RFC 7009), and return why that failed, or ""."""
    if not signed_in.revocation_endpoint:
        return "the server takes no revocations"
    fields = {"token": _token_to_revoke(signed_in), "client_id": signed_in.client_id}
    try:
        answer = await requests.post_form(signed_in.revocation_endpoint, fields)
    except McpClientError as error:
        return escape_unprintable(str(error))
    return "" if answer.status == 200 else answer.error


def _warn_of_page_elsewhere(server: IssuerMetadata) -> None:
    """Warn of a server that sends people to another one, whose answer does not say that it is from there: the first
    could use the code at the second (RFC 9700 section 4.4)."""
    page, issuer = server.authorization_endpoint, server.issuer
    if not server.sends_issuer and get_origin(page) != get_origin(issuer):
        hosts = f"{urlsplit(issuer).netloc} sends you to {urlsplit(page).netloc}"
        print(f"toolgate: {hosts}: approve only if you trust both", file=sys.stderr)


def _tell_person(config: Config, authorize_url: str, local_url: str) -> None:
    """Open the browser, and print where to sign in without one."""
    opener = find_opener(config)
    if opener:
        place = opener if "%s" in opener else [*opener, "%s"]  # "firefox %s" and "firefox" are both usual
        _open(config, [local_url if word == "%s" else word for word in place])
    head = "Sign in with the browser that opens. If none does, open" if opener else "To sign in, open"
    print(f"{head} this link:\n\n  {authorize_url}\n", file=sys.stderr)
    if sys.stdin.isatty():
        print("Signing in on another machine? Paste the address of the page that fails to load:", file=sys.stderr)


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
    openers = [shutil.which(name, path=environment.get("PATH")) for name in ("xdg-open", "wslview")]
    return [path for path in openers if path][:1]


def _open(config: Config, command: list[str]) -> None:
    quiet = subprocess.DEVNULL
    try:
        subprocess.Popen(  # the person's own browser
            command, stdin=quiet, stdout=quiet, stderr=quiet, env=config.own_environment, start_new_session=True
        )
    except (OSError, ValueError):
        return  # the URL is printed
