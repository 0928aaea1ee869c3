"""Compile each template of a page once, not in each server that shows it: it is most of a sign-in's time."""

from typing import Any

from jinja2 import Environment

from toolgate.server.config.feature_rows import ROOM
from toolgate.transports.web import templates

FEATURES = templates.FOLDER.parents[2] / ROOM.removeprefix("toolgate.").replace(".", "/")


def keep_compiled() -> None:
    """Have all environments of this process share what they compile."""
    compiled: dict[tuple[Any, ...], Any] = {}
    compile_anew: Any = Environment.compile

    def compile_once(environment: Environment, source: Any, *words: Any, **options: Any) -> Any:
        key = (source, *words, *options.items())
        if key not in compiled:
            compiled[key] = compile_anew(environment, source, *words, **options)
        return compiled[key]

    Environment.compile = compile_once  # type: ignore[method-assign]


def compile_pages() -> None:
    """Compile the templates of the core and of the features, for this process and its forks."""
    keep_compiled()
    environment = templates.PageTemplates("", "")._templates
    for file in sorted(templates.FOLDER.glob("*.html")):
        environment.get_template(file.name)
    for file in sorted(FEATURES.glob("*/pages/*.html")):
        environment.from_string(file.read_text("utf-8"))
