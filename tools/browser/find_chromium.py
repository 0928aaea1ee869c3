"""Find the Chromium program. Start-up imports this file, so it imports no optional package."""

import shutil

# Builds without windows first: a page takes a third of the processor time
PROGRAMS = (
    "chromium-headless-shell chrome-headless-shell chromium chromium-browser google-chrome google-chrome-stable chrome"
)


def find_chromium(option: str | None, path: str | None) -> str | None:
    """Return Chromium's path, or None. `option`: a program, "none", or None for one of PROGRAMS in the PATH `path`.
    Raises ValueError when `option` names no program."""
    if option == "none":
        return None
    if option is not None:
        found = shutil.which(option, path=path)
        if found is None:
            raise ValueError(f"program {option} not found")
        return found
    return next((found for name in PROGRAMS.split() if (found := shutil.which(name, path=path))), None)
