"""Check that metadata documents of clients can be fetched from here, by fetching the well-known ones."""

import asyncio
from typing import TYPE_CHECKING

from toolgate.server.cli.doctor.report import CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.config.load import Config

if TYPE_CHECKING:
    from toolgate.tools.web.fetch import Web


async def documents(config: Config) -> CheckFinding:
    if not config.is_remote or config.auth != "oauth":
        raise CheckSkippedError("clients do not sign in here")
    if config.registration not in ("open", "metadata"):
        raise CheckSkippedError(f"--registration {config.registration} accepts none")
    from toolgate.server.auth.clients import document_copies
    from toolgate.server.auth.clients import metadata_documents as documents
    from toolgate.server.auth.setup import client_fetch_hosts  # start-up
    from toolgate.tools.web.fetch import Web

    urls = [url for url in document_copies.DOCUMENT_COPIES if documents.is_accepted_host(url, config.client_hosts)]
    if not urls:
        raise CheckSkippedError("--client-hosts accepts none of the well-known hosts")
    web = Web(client_fetch_hosts(config.allow_private, config.public_url or "http://127.0.0.1"))
    try:
        failures = [fault for fault in await asyncio.gather(*(_find_failure(web, url) for url in urls)) if fault]
    finally:
        await web.close()
    if not failures:
        return f"fetched: {', '.join(urls)}"
    remedy = "let this server reach that host, or start it with --registration "
    others = "open: only clients with a copy here can come" if config.registration == "metadata" else "dynamic"
    return CheckNote("; ".join(failures), remedy + others)


async def _find_failure(web: "Web", url: str) -> str:
    """Return why the document at `url` can't be fetched; "" where it can."""
    from toolgate.server.auth.clients.metadata_documents import fetch_json  # start-up
    from toolgate.tools.api.errors import ToolError

    try:
        page = await fetch_json(web.fetch, url)
    except ToolError as error:
        return f"{url}: {error.text}"
    return "" if page.status == 200 else f"{url} answers {page.status}"
