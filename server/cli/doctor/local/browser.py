"""Whether the browser that ReadDocs wants starts here."""

from toolgate.server.cli.doctor.report import CheckFailedError, CheckFinding, CheckSkippedError
from toolgate.server.config.load import Config


async def browser(config: Config) -> CheckFinding:
    """Started for real: whether its own sandbox holds here is not to be seen otherwise."""
    from toolgate.tools.browser.browser import Browser  # start-up
    from toolgate.tools.browser.chromium import BrowserStartError
    from toolgate.tools.browser.find_chromium import find_chromium
    from toolgate.tools.web.address_policy import AddressPolicy

    try:
        found = find_chromium(config.browser, config.environment.get("PATH"))
    except ValueError as error:
        raise CheckFailedError(str(error), "--browser names it") from None
    if found is None:
        without = "ReadDocs fetches pages without running their scripts"
        raise CheckSkippedError(
            f"{without}; for one: apt-get install chromium-headless-shell, pip install 'toolgate[browser]'"
        )
    browser = Browser(found, AddressPolicy())
    try:
        sandboxed = await browser.try_start()
    except BrowserStartError as failure:
        raise CheckFailedError(f"{found}: {failure}", "ReadDocs does without; --browser none says so") from None
    finally:
        await browser.close()
    return f"{found}, its sandbox {'on' if sandboxed else 'OFF: this machine does not let it make one'}"
