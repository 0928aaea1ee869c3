"""Find the Chromium program. Start-up imports this file, so it imports no optional package."""

import os

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
        found = _find_program(option, path)
        if found is None:
            raise ValueError(f"program {option} not found: give the path of Chromium, or none to do without")
        return found
    return next((found for name in PROGRAMS.split() if (found := _find_program(name, path))), None)


def _find_program(name: str, path: str | None) -> str | None:
    """Return the program's path, or None. `shutil.which` does more, but takes 2 ms and 0.5 MB to import."""
    folders = (os.defpath if path is None else path).split(os.pathsep)
    places = [name] if os.path.dirname(name) else [os.path.join(folder, name) for folder in folders if folder]
    return next((place for place in places if os.path.isfile(place) and os.access(place, os.X_OK)), None)
