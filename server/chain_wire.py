"""One exchange with a server that is being examined: bounded in time and size, no redirect followed. A failure is a
broken link."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from toolgate.server.checks import Broken
from toolgate.server.client import Fault
from toolgate.server.errors import UsageError
from toolgate.server.http_client import exchange

TIMEOUT = 10.0  # seconds for an answer: hosted platforms wait no longer for one of these
MAX_BODY = 1_048_576  # bytes


@dataclass(frozen=True, slots=True)
class Got:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The JSON object it is; empty where it is none."""
        try:
            found = msgspec.json.decode(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


async def ask(method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Got:
    """Raises Broken when there is no answer in time."""
    given = {"Content-Type": "" if not body else "application/json", "User-Agent": "toolgate-doctor", **headers}
    try:
        async with asyncio.timeout(TIMEOUT), exchange(method, url, given, body) as response:
            content = b""
            if not response.is_stream and method != "HEAD" and response.status not in (204, 304):
                async for part in response.body:
                    content += part
                    if len(content) > MAX_BODY:
                        break
            elif response.is_stream:
                content = await anext(aiter(response.body), b"")
            return Got(response.status, response.headers, content)
    except TimeoutError:
        raise Broken(f"{url}: no answer in {TIMEOUT:g} s", "hosted clients wait no longer: mend the proxy") from None
    except Fault as fault:
        raise Broken(str(fault), "start the server, and have this address lead to it") from None
    except UsageError:
        raise Broken(f"{url} is no URL that can be asked", "look at what answers there") from None


async def document(url: str, remedy: str) -> tuple[Got, dict[str, Any]]:
    """A JSON object. Raises Broken."""
    got = await ask("GET", url, {"Accept": "application/json", "Origin": "https://client.example"})
    told = got.json()
    if got.status != 200 or not told:
        what = f"redirects to {got.headers.get('location')}" if 300 <= got.status < 400 else f"answers {got.status}"
        raise Broken(f"{url} {what if got.status != 200 else 'is no JSON object'}", remedy)
    return got, told
