"""Convert the chosen content of a page to Markdown or text."""

import importlib
from typing import Any

from toolgate.tools.api.text.cleaning import clean_text, remove_invisible
from toolgate.tools.reading.web.html.edit import HEADINGS, REMOVE, Element, apply_marks, has_any
from toolgate.tools.reading.web.html.links import prepare_links, prepare_pictures
from toolgate.tools.reading.web.html.listings import write_listings
from toolgate.tools.reading.web.html.lists import number_items, write_numbers
from toolgate.tools.reading.web.html.parse import to_html
from toolgate.tools.reading.web.html.scripts import write_scripts
from toolgate.tools.reading.web.html.tables import prepare_tables

BACKSLASH = "\U0010fe00"  # stands for a backslash, which the converter would double


def to_markdown(part: Element, url: str, base: str, form: str) -> str:
    """Return the content of the page at `url` as "markdown", or as "text". Links are relative to `base`."""
    _prepare_part(part, url, base)
    module: Any = importlib.import_module("html_to_markdown")  # start-up
    options = module.ConversionOptions(
        base_url=base,
        output_format="plain" if form == "text" else "markdown",
        extract_metadata=False,
        inline_data_media="alt_text_only",
        highlight_style="none",
        compact_tables=True,
        br_in_tables=True,
        hidden_content="all",  # done on the tree, too
        preprocessing=module.PreprocessingOptions(enabled=False),  # done on the tree
    )
    source = to_html(part).replace("\\", BACKSLASH)
    text = (module.convert(source, options).content or "").replace(BACKSLASH, "\\")
    return clean_text(remove_invisible(write_numbers(text))).strip()


def _prepare_part(part: Element, url: str, base: str) -> None:
    for element in part.xpath("descendant::*[@hidden]"):
        element.tag = REMOVE
    for summary in part.iter("summary"):
        if has_any(summary, HEADINGS):
            summary.tag = "div"
    write_scripts(part)
    prepare_links(part, url, base)
    prepare_pictures(part)
    write_listings(part)
    prepare_tables(part)
    number_items(part)
    apply_marks(part)
