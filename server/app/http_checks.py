"""Check the options of HTTP before a server starts. Imports no web framework: `doctor` checks them, too."""

from urllib.parse import urlsplit

from toolgate.server.base.errors import UsageError
from toolgate.server.config.load import Config
from toolgate.server.config.types import is_loopback


def check_http(config: Config) -> None:
    """Raise UsageError for options that can't be served, and for those that would give strangers a shell."""
    if config.auth != "none":
        from toolgate.server.app.features import open_store  # start-up
        from toolgate.server.auth import setup as access

        access.check_config(config, open_store(config))
    public = urlsplit(config.public_url or "http://127.0.0.1").hostname or ""
    if config.auth == "none":
        if not is_loopback(config.host):
            raise UsageError(f"--host: --auth none serves on loopback only, not on {config.host}")
        if not is_loopback(public):
            raise UsageError(f"--public-url: --auth none serves on loopback only, not under {config.public_url}")
    if not config.is_public:
        return
    if config.public_url is None:
        raise UsageError("--public-url is missing: beyond localhost it is required, the https URL that clients use")
    if config.sandbox_level == "none" and not config.accept_unsandboxed:
        raise UsageError(
            "--sandbox none: commands have all the server's permissions; beyond localhost, confirm it with "
            "--accept-unsandboxed"
        )
