"""Show pictures of any range of values: greys of 16 and 32 bits, fractions, and colours of 16 bits.

PNG and JPEG as clients know them hold 256 values. Those of another range come out black or white, so they are stretched
to that range. Memory holds one strip of the picture in a second form.
"""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

WHITE = 255
FULL = 65_535  # the largest value of 16 bits
NEARLY_FULL = 0.9  # share of 16 bits: greys that use so much are shown as they are
DARK = 64  # of 255: colours of 16 bits that stay below it were likely of 12 or 14
MAX_COMPARED = 2**18  # values of a strip with gaps: 64 megapixels take 3 s of the 20
LARGE = 1e30  # larger fractions stand for pixels without a value
PHOTOMETRIC = 262  # tag of a TIFF; 0: its smallest value is white
NO_DATA = 42_113  # tag of a TIFF from GDAL: the value of pixels without one
WIDE = ("I", "F")  # Pillow's modes of 32 bits


class ToneConversion(NamedTuple):
    """How strips of a picture come to 8 bits; `note` says so, if it changes what is seen."""

    convert: "Callable[[Picture], Picture]"
    note: str = ""


class GreyRange(NamedTuple):
    """The smallest and the largest value; `has_gaps` if some pixels have none."""

    low: float
    high: float
    has_gaps: bool


class GreyScale(NamedTuple):
    """The factor and the offset that lead from values to 0…255."""

    factor: float
    offset: float
    note: str


def is_deep(picture: "Picture") -> bool:
    """Return whether the picture is grey with more than 8 bits."""
    return picture.mode[0] in WIDE


def has_deep_colours(picture: Any) -> bool:
    """Return whether a picture that is not yet loaded has colours of 16 bits, of which Pillow keeps the upper 8."""
    return picture.mode[:2] in ("RG", "LA") and any("16" in str(tile[3]) for tile in picture.tile)


def are_dark(picture: Any) -> bool:
    """Return whether a loaded picture has no colour that is brighter than DARK."""
    return 0 < _find_brightness(picture) < DARK


def choose_conversion(picture: Any, mode: str, strips: Iterable["Picture"], *, brightens: bool) -> ToneConversion:
    """Return how to convert a loaded picture to `mode`. `strips` are all of it; `brightens` stretches its colours."""
    if is_deep(picture):
        scale = _choose_scale(picture, strips)
        return ToneConversion(lambda strip: _apply_scale(strip, scale), scale.note)
    if not brightens:
        return ToneConversion(lambda strip: strip.convert(mode))
    brightness = _find_brightness(picture)
    table = [min(WHITE, round(value * WHITE / brightness)) for value in range(WHITE + 1)]
    whole = [*table * 3, *(range(WHITE + 1) if mode == "RGBA" else ())]
    note = f"its colours use {brightness / WHITE:.0%} of their range, and are stretched to all of it"
    return ToneConversion(lambda strip: strip.convert(mode).point(whole), note)


def _find_brightness(picture: Any) -> int:
    """Return the largest value of the bands that are colours."""
    bounds = zip(picture.getbands(), picture.getextrema(), strict=True)
    return int(max(high for band, (_, high) in bounds if band not in "aA"))


def _choose_scale(picture: Any, strips: Iterable["Picture"]) -> GreyScale:
    tags = getattr(picture, "tag_v2", {})
    values = _measure(map(_widen, strips), _parse_number(tags.get(NO_DATA)))
    scale = _fit_range(values, picture.mode)
    if tags.get(PHOTOMETRIC) == 0:
        return scale._replace(factor=-scale.factor, offset=WHITE - scale.offset)
    return scale


def _apply_scale(strip: "Picture", scale: GreyScale) -> "Picture":
    def change(value: float) -> float:
        return value * scale.factor + scale.offset

    return _widen(strip).point(change).convert("L")


def _widen(strip: "Picture") -> "Picture":
    return strip if strip.mode in WIDE else strip.convert("I")


def _measure(strips: Iterable[Any], empty: float) -> GreyRange | None:
    """Return the range of the values that are neither `empty` nor beyond LARGE, or None if there are none."""
    lows: list[float] = []
    highs: list[float] = []
    has_gaps = False
    for strip in strips:
        low, high = strip.getextrema()
        if not (_is_value(low, empty) and _is_value(high, empty)):
            has_gaps = True
            view = memoryview(strip.tobytes())
            numbers = view.cast("f") if strip.mode == "F" else view.cast("i")
            step = len(numbers) // MAX_COMPARED | 1  # odd: columns come in even numbers
            values = [value for value in numbers[::step] if _is_value(value, empty)]
            if not values:
                continue
            low, high = min(values), max(values)
        lows.append(low)
        highs.append(high)
    return GreyRange(min(lows), max(highs), has_gaps) if lows else None


def _is_value(value: float, empty: float) -> bool:
    return -LARGE < value < LARGE and value != empty  # no comparison with NaN is true


def _fit_range(values: GreyRange | None, mode: str) -> GreyScale:
    if values is None:
        return GreyScale(0.0, 0.0, "no pixel has a value")
    low, high, has_gaps = values
    gaps = "; pixels without a value are black" if has_gaps else ""
    if low == high:
        return GreyScale(0.0, _place_value(low, mode), f"each pixel has the value {low:g}{gaps}")
    if mode.startswith("I;16") and high - low >= NEARLY_FULL * FULL:
        return GreyScale(WHITE / FULL, 0.0, gaps.removeprefix("; "))
    factor = WHITE / (high - low)
    return GreyScale(factor, -low * factor, f"grey values {low:g} to {high:g} are stretched to black and white{gaps}")


def _place_value(value: float, mode: str) -> float:
    """Return the grey of a picture whose pixels all have this value."""
    if mode.startswith("I;16"):
        return value / FULL * WHITE
    if mode == "F" and 0 <= value <= 1:
        return value * WHITE
    return value if 0 <= value <= WHITE else WHITE / 2


def _parse_number(text: object) -> float:
    try:
        return float(str(text).strip("\0 "))
    except ValueError:
        return math.nan
