"""Write the boxes of task lists as text, and number the items of lists as the page does."""

import re

from toolgate.tools.reading.web.html.edit import Element, replace_by_text

# The converter numbers items itself. A number between these marks, at the beginning of an item, replaces its own.
BEGIN, END = "\U0010fe01", "\U0010fe02"
MARKED = re.compile(f"(?:\\d+[.)][ \t]+)?{BEGIN}(-?\\d{{1,9}}){END}\\s*")
FORMS = ("form", "nav", "fieldset", "aside")


def write_checkboxes(body: Element) -> None:
    """Replace each box that shows a state by `[x]` or `[ ]`. Boxes of a form, which ask for one, stay."""
    for box in list(body.iter("input")):
        if box.get("type", "").strip().lower() == "checkbox" and _shows_state(box):
            replace_by_text(box, "[x] " if box.get("checked") is not None else "[ ] ")


def _shows_state(box: Element) -> bool:
    ancestors = [each.tag for each in box.iterancestors()]
    if box.get("disabled") is not None:
        return True
    return any(tag in ("li", "td", "th") for tag in ancestors[:4]) and not any(tag in FORMS for tag in ancestors)


def number_items(part: Element) -> None:
    """Mark the number of each item of a list that does not count from 1 upwards."""
    for each in list(part.iter("ol")):
        items = [item for item in each if item.tag == "li"]
        is_reversed = each.get("reversed") is not None
        if is_reversed or each.get("start") is not None or any(item.get("value") is not None for item in items):
            _number_list(each, items, -1 if is_reversed else 1)


def _number_list(each: Element, items: list[Element], step: int) -> None:
    number = _to_number(each.attrib.pop("start", None), len(items) if step < 0 else 1)
    for item in items:
        number = _to_number(item.attrib.pop("value", None), number)
        item.text = f"{BEGIN}{number}{END}{(item.text or '').lstrip()}"
        number += step


def _to_number(text: str | None, otherwise: int) -> int:
    found = re.match(r"\s*(-?\d{1,9})", text or "")
    return int(found[1]) if found else otherwise


def write_numbers(text: str) -> str:
    """Replace the converter's numbers by the marked ones."""
    return MARKED.sub(r"\1. ", text) if BEGIN in text else text
