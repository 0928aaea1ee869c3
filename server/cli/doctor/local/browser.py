"""Whether the browser that ReadDocs wants starts here."""

from toolgate.server.cli.doctor.report import Broken, Finding, Skipped
from toolgate.server.config.load import Config


async def browser(config: Config) -> Finding:
    """Started for real: whether its own sandbox holds here is not to be seen otherwise."""
    from toolgate.tools.browser.browser import Browser  # start-up
    from toolgate.tools.browser.chromium import NotStarted
    from toolgate.tools.browser.find_chromium import program
    from toolgate.tools.web.address_policy import Allowed

    try:
        found = program(config.browser, config.environment.get("PATH"))
    except ValueError as error:
        raise Broken(str(error), "--browser names it") from None
    if found is None:
        without = "ReadDocs fetches pages without running their scripts"
        raise Skipped(f"{without}; for one: apt-get install chromium-headless-shell, pip install 'toolgate[browser]'")
    browser = Browser(found, Allowed())
    try:
        sandboxed = await browser.try_start()
    except NotStarted as failure:
        raise Broken(f"{found}: {failure}", "ReadDocs does without; --browser none says so") from None
    finally:
        await browser.close()
    return f"{found}, its sandbox {'on' if sandboxed else 'OFF: this machine does not let it make one'}"
