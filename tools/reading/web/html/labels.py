"""Keep the words of controls that are headings: of tabs, accordions and questions. Other controls go.

The label of a tab moves to the beginning of its panel, so that a reader sees which is which.
"""

import re
from collections.abc import Sequence
from itertools import islice

from toolgate.tools.reading.web.html.edit import (
    HEADINGS,
    REMOVE,
    UNWRAP,
    AttributeIndex,
    Element,
    create_element,
    has_any,
    has_text,
    text_of,
)
from toolgate.tools.reading.web.html.panels import OPENERS, PANEL, find_pointers, is_menu_control

CONTROLS = ("button", "select", "textarea", "dialog", "input")
# What no control holds: it swallowed the text behind it, as its end is missing
SWALLOWED = ("p", "pre", "table", "ul", "ol", "dl", "blockquote", "article", "section", "main", *HEADINGS)
TITLES = ("summary", "dt", "legend", "caption", "figcaption", *HEADINGS)
TABS = re.compile(r"tab|nav-link|pill")
MAX_LABEL = 80  # characters of a tab's label
NO_PANELS = frozenset(("input", "button", "label", "select", "option", "a"))


def keep_labels(body: Element, index: AttributeIndex) -> None:
    """Move the labels of tabs, and unwrap the buttons whose words belong to the text."""
    _move_tab_labels(body, index)
    titles: dict[Element, bool] = {}  # whether they have words of their own
    for control in list(body.iter("button", "select")):
        if has_any(control, SWALLOWED):
            control.tag = UNWRAP
        elif control.tag == "button" and has_text(control):
            _keep_button(control, titles)


def _keep_button(button: Element, titles: dict[Element, bool]) -> None:
    title = next((each for each in islice(button.iterancestors(), 4) if each.tag in TITLES), None)
    if title is not None:
        if title not in titles:
            titles[title] = _has_words_of_its_own(title)
        if not titles[title]:
            button.tag = UNWRAP
    elif _opens_panel(button):
        _write_label(button)


def _has_words_of_its_own(title: Element) -> bool:
    """Return whether a heading has words outside its buttons."""
    inside = sum(len("".join(text_of(button).split())) for button in title.iter("button"))
    return len("".join(text_of(title).split())) > inside


def _opens_panel(button: Element) -> bool:
    """Return whether a button opens the part of the text behind it."""
    says_so = button.get("aria-expanded") is not None or OPENERS.search(button.get("class", "").lower()) is not None
    says_so = says_so or "collapse" in (button.get("data-toggle"), button.get("data-bs-toggle"))
    if not says_so or is_menu_control(button):
        return False
    return any(each.getnext() is not None for each in (button, *islice(button.iterancestors(), 2)))


def _write_label(button: Element) -> None:
    """Make a button a block of strong text."""
    strong = create_element("strong")
    strong.text = button.text
    strong.extend(list(button))
    button.text = None
    button.tag = "div"
    button.append(strong)


def _move_tab_labels(body: Element, index: AttributeIndex) -> None:
    controls = (*index["role"], *index["data-toggle"], *index["data-bs-toggle"], *body.iter("label", "button"))
    tabs = [each for each in dict.fromkeys(controls) if _is_tab(each)]
    if not tabs:
        return
    panels = {panel.get("id"): panel for panel in index["id"]}
    labelled = {panel.get("aria-labelledby"): panel for panel in index["aria-labelledby"]}
    in_order = {**_pair_groups(tabs), **_pair_lists(index["role"])}
    for tab in tabs:
        label = " ".join(text_of(tab).split())
        targets = [panels.get(name) for name in find_pointers(tab)]
        targets += [labelled.get(tab.get("id")), in_order.get(tab)]
        panel = next((each for each in targets if each is not None and each.tag not in NO_PANELS), None)
        if panel is None or panel is tab or panel.get("hidden") is not None or not 0 < len(label) <= MAX_LABEL:
            _keep_tab(tab)
        elif tab.tag not in HEADINGS:
            _begin_panel(panel, label)
            tab.tag = REMOVE


def _pair_lists(elements: Sequence[Element]) -> dict[Element, Element]:
    """Return the panels of tabs that name none: as many stand behind their list."""
    pairs: dict[Element, Element] = {}
    for tab_list in (each for each in elements if each.get("role") == "tablist"):
        tabs = tab_list.xpath("descendant::*[@role='tab']")
        panels: list[Element] = []
        for sibling in tab_list.itersiblings():
            if sibling.get("role") == "tablist":
                break
            panels += sibling.xpath("descendant-or-self::*[@role='tabpanel']")
        if len(tabs) == len(panels):
            pairs.update(zip(tabs, panels, strict=True))
    return pairs


def _pair_groups(tabs: Sequence[Element]) -> dict[Element, Element]:
    """Return the panels of tabs by their place: behind each tab, or as many in the element behind all of them."""
    pairs: dict[Element, Element] = {}
    groups: dict[Element, list[Element]] = {}
    for tab in tabs:
        following = tab.getnext()
        if following is not None and following.tag == "div" and PANEL.search(following.get("class", "").lower()):
            pairs[tab] = following
        else:
            groups.setdefault(tab.getparent(), []).append(tab)
    for group, group_tabs in groups.items():
        following = group.getnext()
        if following is not None and len(following) == len(group_tabs) > 1:
            pairs.update(zip(group_tabs, following, strict=True))
    return pairs


def _is_tab(control: Element) -> bool:
    toggle = control.get("data-toggle") or control.get("data-bs-toggle")
    if control.get("role") == "tab" or toggle in ("tab", "pill", "list"):
        return True
    if control.tag not in ("button", "label") or toggle is not None:
        return False
    parent = control.getparent()
    around = "" if parent is None else parent.get("class", "")
    if not TABS.search(f"{control.get('class', '')} {around}".lower()):
        return False
    return not any(each.tag in TITLES for each in islice(control.iterancestors(), 4))


def _keep_tab(tab: Element) -> None:
    """Leave the label of a tab whose panel is not known where it is, on a line of its own."""
    if tab.tag in ("button", "label"):
        tab.tag = "div"


def _begin_panel(panel: Element, label: str) -> None:
    if next((piece.strip() for piece in islice(panel.itertext(), 20) if piece.strip()), "") == label:
        return
    paragraph, strong = create_element("p"), create_element("strong")
    strong.text = label
    paragraph.append(strong)
    paragraph.tail = panel.text
    panel.text = None
    panel.insert(0, paragraph)
