"""Write the variables of other clients as ours: `${X}`, `${X:-default}`, `$X` and `{env:X}` become `${env:X}`, and what
VS Code asks its user for, `${input:x}`, becomes `${secret:x}`."""

import re
from collections.abc import Mapping

INPUT = re.compile(r"\$\{input:([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})\}")
BRACED = re.compile(r"(?<!\$)\{((?:env|file):[^{}]*)\}")  # OpenCode's
NAMED = re.compile(r"\$\{([A-Za-z_/][A-Za-z0-9_]*)(:-[^}]*)?\}")
BARE = re.compile(r"(?<![\w$])\$([A-Z_][A-Z0-9_]*)\b")  # in capitals: a password may have a dollar sign
EDITOR_WORDS = frozenset(  # variables of VS Code that depend on what is open there
    (
        *("workspaceFolder", "workspaceFolderBasename", "workspaceRoot", "cwd", "execPath", "defaultBuildTask"),
        *("file", "fileDirname", "fileBasename", "relativeFile", "selectedText", "lineNumber"),
    )
)


def convert_placeholders(text: str, environment: Mapping[str, str], *, has_bare: bool, is_hidden: bool) -> str:
    """Return the text with our variables. What only its person can know becomes `${input:NAME}`, which is reported.

    has_bare: whether `$X` is a variable; in arguments it may be a shell's
    is_hidden: whether a secret may stand there
    """
    if is_hidden:
        text = INPUT.sub(r"${secret:\1}", text)
    text = BRACED.sub(r"${\1}", text)
    text = NAMED.sub(lambda found: _convert(found[1], found[2] or "", environment), text)
    return BARE.sub(r"${env:\1}", text) if has_bare else text


def _convert(name: str, default: str, environment: Mapping[str, str]) -> str:
    if name in ("pathSeparator", "/"):
        return "/"
    if name == "userHome" and environment.get("HOME"):
        return environment["HOME"]
    return f"${{input:{name}}}" if name in EDITOR_WORDS else f"${{env:{name}{default}}}"
