"""Read what the class and id of an element say of its content."""

import re

from toolgate.tools.reading.web.content.blocks import PageBlock
from toolgate.tools.reading.web.html.edit import Element

START = r"(?:^|[\s_-])"  # words count from their beginning: "share" is not in "multishare", but in "share-bar"
END = r"(?![a-z])"
NOISE = re.compile(
    START + r"(?:menu|side-?bar|nav|breadcrumb|related|footer|search|toolbar|pager|pagination|comment|disqus|"
    rf"shar(?:e|ing){END}|social|promo|tags|widget|advert|ads?{END}|sponsor|banner|cookie|consent|popup|modal|"
    r"newsletter|subscri|signup|login|recommend|popular|trending|copyright|outbrain|taboola|masthead|byline|author|"
    rf"meta{END}|rating|skip|more{END}|rail{END}|hidden)",
    re.IGNORECASE,
)
INTRODUCTION = re.compile(
    rf"{START}(?:lead{END}|lede|intro|summary|excerpt|abstract|standfirst|teaser|dek{END}|subtitle|subhead|vorspann|"
    "description)",
    re.IGNORECASE,
)
CAPTION = re.compile(START + "(?:caption|credit|legend|photo|image|gallery|bild)", re.IGNORECASE)
STAMP = re.compile(
    rf"{START}(?:date|time|timestamp|published|posted|author|byline|meta|info|dateline|category|cat){END}",
    re.IGNORECASE,
)
NOTE = re.compile(
    rf"{START}(?:admonition|attention|callout|caution|danger|hint|important|note|tip|warning){END}", re.IGNORECASE
)
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
NAMED_TAGS = frozenset(("div", "ul", "table", "header", "aside", "section", "form"))  # ids of others are their texts


def has_noise_name(element: Element) -> bool:
    """Return whether the names of an element are those of menus, comments, advertising and the like."""
    names = element.get("class") or ""
    if element.tag in NAMED_TAGS:
        names += " " + (element.get("id") or "")
    return not names.isspace() and NOISE.search(split_words(names)) is not None


def has_note_name(element: Element) -> bool:
    """Return whether an element is named as a note or a warning in a text."""
    names = element.get("class") or ""
    return bool(names) and NOTE.search(names) is not None


def split_words(names: str) -> str:
    return CAMEL.sub("-", names)


def names_of(block: PageBlock) -> str:
    """Return the classes of a block, or of its region if it has none of its own."""
    names: str = (block.elements[0].get("class") or "") if block.elements else ""
    if block.is_run or not names:
        names += " " + (block.region.element.get("class") or "")
    return names


def is_caption(block: PageBlock) -> bool:
    return CAPTION.search(split_words(names_of(block))) is not None
