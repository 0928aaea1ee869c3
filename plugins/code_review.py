"""A prompt that a person picks from a menu, with an argument that completes while they type."""

from typing import Annotated

from toolgate.tools import prompt

LANGUAGES = (
    "Bash", "C", "C#", "C++", "CSS", "Dart", "Elixir", "Go", "Haskell", "HTML", "Java", "JavaScript", "Kotlin", "Lua",
    "Perl", "PHP", "Python", "R", "Ruby", "Rust", "Scala", "SQL", "Swift", "TypeScript", "Zig",
)  # fmt: skip


@prompt(name="code-review", title="Code review")
def code_review(
    language: Annotated[str, "the programming language"],
    code: Annotated[str, "the code; without it, what was last talked about"] = "",
) -> str:
    """Have code reviewed: correctness first, then safety, then how it reads."""
    request = (
        f"Review this {language} code. Look for mistakes first, then for security problems, then for what makes it "
        "hard to read. Name the place and say what would be better. Leave out praise and matters of taste."
    )
    if not code:
        return f"{request} The code is the one we last talked about."
    fence = "`" * 3
    while fence in code:  # code with fences gets a longer fence around it
        fence += "`"
    return f"{request}\n\n{fence}{language.lower()}\n{code}\n{fence}"


@code_review.completion("language")
def languages(value: str) -> list[str]:
    """Return the languages that begin with the typed text."""
    typed = value.casefold()
    return [language for language in LANGUAGES if language.casefold().startswith(typed)]
