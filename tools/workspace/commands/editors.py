"""Stand in for editors in commands, where nobody sees a terminal: a program that ends at once and says what to do.

An editor that opens a window, and one that edits by itself, stays as the person or the command names it. The program
runs the editor of git's configuration, or of a variable that the command sets, if it is one of these.
"""

import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

VARIABLES = ("GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "VISUAL", "EDITOR")
IN_TERMINALS = (
    *("vi", "vim", "vim.*", "nvim", "lvim", "view", "nvi", "vile", "elvis", "vis", "ex"),
    *("nano", "rnano", "pico", "micro", "joe", "jmacs", "jstar", "jpico", "jed", "ne", "mg", "zile", "jove", "dte"),
    *("hx", "helix", "kak", "mcedit", "tilde", "editor", "sensible-editor", "select-editor"),
)
EMACS = ("emacs", "emacs-*", "emacsclient", "emacsclient.*", "xemacs")  # it opens a window where there is a display
EMACS_IN_TERMINAL = ("-nw", "-t", "-tty", "--tty", "--no-window-system")
BY_ITSELF = ("-c", "+*", "--cmd", "-s", "-es", "-Es", "-S", "--headless", "--batch", "-batch", "--eval", "-eval")
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
NO_PROGRAM = "false"  # where the disk has no room for it: git then says the same in its own words
REFUSAL = (
    "no editor can be shown here.",
    "Give the text as an option, such as git commit -m, or keep it as it is with GIT_EDITOR=true.",
    "For git rebase -i set GIT_SEQUENCE_EDITOR to a command that changes the list of commits.",
)


def _choose(words: tuple[str, ...]) -> str:
    """Return a pattern of `case` that matches any of the words in the list of an editor's words."""
    return "|".join(f'*" {word.replace("*", "")}"*' if word.endswith("*") else f'*" {word} "*' for word in words)


TEMPLATE = f"""\
#!/bin/sh
# Stand in for an editor, which needs a terminal: run the one that a command or git's configuration names, or refuse.
set -f

is_in_terminal() {{
    set -- $1
    [ $# -gt 0 ] || return 0
    name=${{1##*/}}
    shift
    case " $* " in {_choose(BY_ITSELF)}) return 1 ;; esac
    case ${{name%[\\"\\']}} in
    {"|".join(IN_TERMINALS)}) return 0 ;;
    {"|".join(EMACS)})
        test -z "{"".join(f"${name}" for name in DISPLAYS)}" && return 0
        case " $* " in {_choose(EMACS_IN_TERMINAL)}) return 0 ;; esac ;;
    esac
    return 1
}}

choose() {{
    for editor do
        case $editor in '' | *@NAME@*) ;; *) return ;; esac
    done
    editor=
}}

for file do :; done
case $file in
*/git-rebase-todo)
    choose "$(git config sequence.editor)" "$GIT_EDITOR" "$(git config core.editor)" "$VISUAL" "$EDITOR" ;;
*.git/*) choose "$GIT_EDITOR" "$(git config core.editor)" "$VISUAL" "$EDITOR" ;;
*) choose "$VISUAL" "$EDITOR" ;;
esac
if [ -n "$editor" ] && ! is_in_terminal "$editor"; then
    set +f
    eval "$editor \\"\\$@\\""
    exit
fi
printf '%s\\n' {" ".join(map(shlex.quote, REFUSAL))} >&2
exit 1
"""
NAME = f"{hashlib.sha256(TEMPLATE.encode()).hexdigest()[:8]}.editor"  # servers of several versions may share a folder
PROGRAM = TEMPLATE.replace("@NAME@", NAME)


def name_editors(variables: Mapping[str, str], program: Path | None) -> Mapping[str, str]:
    """Return the variables with `program` for each editor that is missing, or needs a terminal. None: there is no room
    for the program."""
    word = NO_PROGRAM if program is None else shlex.quote(str(program))
    has_display = any(variables.get(name) for name in DISPLAYS)
    named = {name: word for name in VARIABLES if needs_terminal(variables.get(name, ""), has_display=has_display)}
    return {**variables, **named}


def needs_terminal(editor: str, *, has_display: bool) -> bool:
    """Return whether an editor, as a variable names it, is missing or draws on a terminal."""
    words = editor.split()
    if not words:
        return True
    name, options = words[0].rpartition("/")[2].rstrip("\"'"), words[1:]
    if _has_any(options, BY_ITSELF):
        return False
    if _has_any([name], EMACS):
        return not has_display or _has_any(options, EMACS_IN_TERMINAL)
    return _has_any([name], IN_TERMINALS)


def _has_any(words: list[str], patterns: tuple[str, ...]) -> bool:
    regex = "|".join(re.escape(pattern).replace(r"\*", ".*") for pattern in patterns)
    return any(re.fullmatch(regex, word) for word in words)
