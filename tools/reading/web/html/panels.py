"""Find what a click shows, and what nobody sees.

Panels of tabs, accordions and the like are hidden until a click, and belong to the text. Menus and dialogs, which a
click shows, too, do not; nor does what stays hidden. After `show_panels` the attribute `hidden` alone marks those.
"""

import re
from collections.abc import Sequence
from itertools import islice

from toolgate.tools.reading.web.html.edit import AttributeIndex, Element

LITTLE = 200  # characters: a page that shows less waits for its scripts
HIDING = re.compile(
    r"(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|content-visibility\s*:\s*hidden)[^;]*;?", re.I
)
CONTROLS = ("button", "summary", "label", "a")
CONTROL_ATTRIBUTES = (
    *("aria-controls", "aria-expanded", "onclick", "data-toggle", "data-bs-toggle", "data-target", "data-tab"),
)
POINTERS = ("aria-controls", "aria-owns", "data-target", "data-bs-target", "href", "onclick", "for")
WORD = re.compile(r"[^\s#'\"(),;=<>]+")
PANEL = re.compile(
    r"tab[_-]*(?:pane|panel|content|body|item)|tabs?[_-]|tabbed|tabset|accordion|collaps|expand|faq|spoiler|disclosure"
    r"|toggle[_-]*(?:content|body|panel)|details|answer|code-?group|show-?more|read-?more|panel|(?<![a-z])tabs?(?![a-z])"
)
OPENERS = re.compile(r"accordion|collaps|faq|question|disclosure|expand|toggle|spoiler|tab")
DATA = re.compile(r"data-.*(?:tab|panel|pane|target|content|os|lang|platform|option|toggle)", re.IGNORECASE)
# What a click shows, too, and is no part of the text
OTHER_ROLES = frozenset(
    (
        *("alert", "alertdialog", "banner", "dialog", "listbox", "log", "menu", "menubar", "navigation", "search"),
        *("status", "tooltip"),
    )
)
OTHER_TAGS = frozenset(
    ("nav", "form", "dialog", "template", "input", "select", "script", "style", "noscript", "svg", "img")
)
OTHER = re.compile(
    r"modal|dialog|lightbox|popup|popover|tooltip|dropdown|drawer|off-?canvas|overlay|cookie|consent|gdpr|newsletter|toast"
    r"|login|sign-?(?:in|up)|search|sidebar|navbar|navigation|breadcrumb|skeleton|spinner|loading|honeypot|hamburger"
    r"|error|warning-message|feedback|(?<![a-z])(?:menu|nav|share)(?![a-z])"
)
OTHER_TOGGLES = frozenset(("modal", "dropdown", "offcanvas", "tooltip", "popover"))
LEVELS = 12  # ancestors that may say what a panel is not


def show_panels(body: Element, index: AttributeIndex) -> None:
    """Show what a click shows, and mark what stays hidden by the attribute `hidden` alone."""
    likely = dict.fromkeys((*index["hidden"], *index["style"], *index["aria-hidden"]))
    candidates = [element for element in likely if element is not body and _is_hidden(element)]
    _show(body)  # until its scripts have run
    if not candidates:
        return
    known: dict[Element, bool] = {}
    panels = [element for element in candidates if not is_other(element, known)]
    shown = {element for element in panels if _is_panel(element) or _follows_control(element)}
    shown.update(_find_targets(body, index, [element for element in panels if element not in shown]))
    for element in candidates:
        _show(element)
        if element not in shown:
            element.set("hidden", "")


def reveal_waiting(body: Element) -> None:
    """Show everything if the page hides nearly all of its text: its scripts would show it."""
    hidden_parts = body.xpath("descendant::*[@hidden][not(ancestor::*[@hidden])]")
    if not hidden_parts:
        return
    letters = sum(_count_letters(part) for part in hidden_parts)
    rest = _count_letters(body) - letters
    if rest < LITTLE and rest < letters:
        for part in body.xpath("descendant::*[@hidden]"):
            del part.attrib["hidden"]


def is_other(element: Element, known: dict[Element, bool] | None = None) -> bool:
    """Return whether an element or one around it is a menu, a dialog or the like, which is no part of the text.
    `known` holds the results for elements around others."""
    if element.tag == "input" or element.get("aria-modal") is not None:
        return True
    known = {} if known is None else known
    path: list[Element] = []
    result = False
    for each in (element, *islice(element.iterancestors(), LEVELS)):
        if each in known:
            result = known[each]
            break
        path.append(each)
        if each.tag in ("body", "main", "article"):
            break
        if each.tag in OTHER_TAGS or each.get("role", "").lower() in OTHER_ROLES or OTHER.search(name_words(each)):
            result = True
            break
    known.update(dict.fromkeys(path, result))
    return result


def name_words(element: Element) -> str:
    """Return the class and the id of an element in lower case."""
    return f"{element.get('class', '')} {element.get('id', '')}".lower()


def _is_panel(element: Element) -> bool:
    """Return whether the element says that a click shows it."""
    role = element.get("role", "").lower()
    if role == "tabpanel" or (role == "region" and element.get("aria-labelledby")):
        return True
    if element.get("hidden", "").lower() == "until-found":
        return True
    parent = element.getparent()
    around = "" if parent is None else parent.get("class", "").lower()
    own_tag = element.tag if "-" in element.tag else ""  # an element of the page's own
    return PANEL.search(f"{name_words(element)} {around} {own_tag}") is not None


def is_menu_control(element: Element) -> bool:
    """Return whether a control opens a menu or a dialog."""
    toggle = (element.get("data-toggle") or element.get("data-bs-toggle") or "").lower()
    if element.get("role", "").lower() == "tab" or toggle in ("tab", "pill", "collapse"):
        return False
    if element.get("aria-haspopup", "false").lower() != "false":
        return True
    return toggle in OTHER_TOGGLES or is_other(element)


def find_pointers(element: Element) -> list[str]:
    """Return the ids that a control names."""
    found: list[str] = []
    for name in POINTERS:
        value = element.get(name, "")
        if name != "href" or value.startswith("#"):
            found += WORD.findall(value)
    return found


def _find_targets(body: Element, index: AttributeIndex, elements: Sequence[Element]) -> list[Element]:
    """Return those elements that a control names by their ids, or whose data it has."""
    names = {name: element for element in elements for name in (element.get("id"), *_find_data(element)) if name}
    found: list[Element] = []
    controls = dict.fromkeys(body.iter(*CONTROLS)) if names else {}
    for name in CONTROL_ATTRIBUTES if names else ():
        controls.update(dict.fromkeys(index[name]))
    for control in controls:
        targets = names.keys() & {*find_pointers(control), *_find_data(control)}
        if targets and not is_menu_control(control):
            found += [names[name] for name in targets]
    return found


def _find_data(element: Element) -> set[str]:
    """Return what panels and their controls have in common, as `data-name=value`."""
    items = element.attrib.items()
    return {f"{name}={value}" for name, value in items if DATA.match(name) and value not in ("", "true", "false")}


def _follows_control(element: Element) -> bool:
    """Return whether a control that opens something stands right before the element, or in the element before it."""
    previous = element.getprevious()
    if previous is None:
        return False
    controls = previous.xpath("descendant-or-self::*[@aria-expanded or self::button or @role='button']")
    return any(_opens(control) and not is_menu_control(control) for control in islice(controls, 3))


def _opens(control: Element) -> bool:
    return control.get("aria-expanded") is not None or OPENERS.search(control.get("class", "").lower()) is not None


def _is_hidden(element: Element) -> bool:
    return (
        element.get("hidden") is not None
        or HIDING.search(element.get("style", "")) is not None
        or (element.get("aria-hidden") == "true" and element.get("role", "").lower() == "tabpanel")
    )


def _show(element: Element) -> None:
    for name in ("hidden", "aria-hidden"):
        element.attrib.pop(name, None)
    if style := element.get("style"):
        element.set("style", HIDING.sub("", style))


def _count_letters(element: Element) -> int:
    text: str = element.xpath("string()")
    return len("".join(text.split()))
