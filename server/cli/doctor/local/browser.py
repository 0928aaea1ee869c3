"""Check that the browser for ReadDocs starts here."""

from toolgate.server.cli.doctor.report import CheckFailedError, CheckFinding, CheckSkippedError
from toolgate.server.config.load import Config


async def browser(config: Config) -> CheckFinding:
    """Start the browser: only that shows whether its own sandbox works here."""
    from toolgate.tools.browser.browser import Browser  # start-up
    from toolgate.tools.browser.chromium import BrowserStartError
    from toolgate.tools.browser.find_chromium import find_chromium
    from toolgate.tools.web.address_policy import AddressPolicy

    try:
        found = find_chromium(config.browser, config.environment.get("PATH"))
    except ValueError as error:
        raise CheckFailedError(str(error), "correct --browser") from None
    if found is None:
        without = "optional: ReadDocs works without a browser, but runs no scripts of pages"
        raise CheckSkippedError(
            f"{without}; to add one: apt-get install chromium-headless-shell, pip install 'toolgate[browser]'"
        )
    browser = Browser(found, AddressPolicy())
    try:
        sandboxed = await browser.try_start()
    except BrowserStartError as failure:
        raise CheckFailedError(
            f"{found}: {failure}", "optional: ReadDocs works without a browser; --browser none silences this"
        ) from None
    finally:
        await browser.close()
    return f"{found}, its sandbox {'on' if sandboxed else 'OFF: this machine does not allow one'}"
