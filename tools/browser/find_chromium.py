"""Find the Chromium program. Imported at the start, so it imports no package that may be missing."""

import shutil

# Those without windows first: a page costs them a third of the processor time
PROGRAMS = (
    "chromium-headless-shell chrome-headless-shell chromium chromium-browser google-chrome google-chrome-stable chrome"
)


def find_chromium(option: str | None, path: str | None) -> str | None:
    """Return where Chromium is. `option`: a program, "none", or None for one of PROGRAMS in the PATH `path`.

    None when there is none. Raises ValueError when `option` names no program.
    """
    if option == "none":
        return None
    if option is not None:
        found = shutil.which(option, path=path)
        if found is None:
            raise ValueError(f"program {option} not found")
        return found
    return next((found for name in PROGRAMS.split() if (found := shutil.which(name, path=path))), None)
