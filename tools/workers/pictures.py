"""Scale a picture to fit clients' limits, in a worker that may be killed.

Memory holds one decoded copy of a large picture: it is shrunk and converted strip by strip.
"""

import builtins
import importlib
from io import BytesIO
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.tools.api.errors import ToolError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_PIXELS = 64_000_000  # decoded they take at most 4 bytes each
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "DIB", "TIFF")  # no other decoder sees foreign bytes
# An MPO is a JPEG followed by more pictures, as some telephones write it.
SENT_AS_IS = {"PNG": "png", "JPEG": "jpeg", "MPO": "jpeg", "GIF": "gif", "WEBP": "webp"}
QUALITIES = (85, 70, 50)  # of JPEG, tried in turn before the picture is shrunk
SMALLER = 0.7  # of its edges
SMALLEST = 16  # pixels of the long edge: the smallest size tried
PROFILE = 32_768  # bytes; a larger colour profile costs too much of the budget
STRIP = 2**20  # pixels that are converted at once
COARSE_FACTOR = 2  # multiple of the wanted edge that the fast, coarse shrinking leaves
ORIENTATION = 0x0112  # EXIF


class RawPicture(msgspec.Struct, frozen=True):
    """A picture file: `path` for errors; `bytes` (before base64) and `pixels` (long edge) are limits."""

    path: str
    bytes: int
    pixels: int
    body: "builtins.bytes" = b""


class FittedPicture(msgspec.Struct, frozen=True):
    """The picture to send, and a note on how it was changed ("" if it was not)."""

    data: bytes
    format: str
    width: int
    height: int
    is_scaled: bool
    note: str


def prepare() -> None:
    """Load all that decoding needs: a confined worker can load nothing later."""
    from PIL import Image as pillow  # noqa: N813  # start-up

    pillow.init()
    for name in ("ImageCms", "ImageColor", "ImageFilter", "ImageOps", "ImagePalette", "TiffImagePlugin"):
        importlib.import_module(f"PIL.{name}")
    pillow.MAX_IMAGE_PIXELS = None  # Pillow would only warn; `fit_picture` refuses


def fit_picture(raw: RawPicture) -> FittedPicture:
    """Return the picture within its limits. Raises ToolError, and MemoryError."""
    # Foreign bytes make a decoder raise anything (OSError, SyntaxError, struct.error, …).
    try:
        with _open(raw) as picture:
            return _fit(raw, picture)
    except (ToolError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ToolError(f"{raw.path} is damaged or cut short: {reason}") from None


def _open(raw: RawPicture) -> "Picture":
    """Return the picture with only its header read."""
    from PIL import Image as pillow  # noqa: N813  # start-up
    from PIL import UnidentifiedImageError

    try:
        picture = pillow.open(BytesIO(raw.body), formats=FORMATS)
    except UnidentifiedImageError:
        is_text = b"\0" not in raw.body[:1024] and raw.body[:1024].isascii()
        kind = "text" if is_text else "something else, or damaged"
        raise ToolError(f"{raw.path} is not a png, jpeg, gif, webp, bmp or tiff image but {kind}") from None
    if picture.width * picture.height > MAX_PIXELS:
        size = f"{picture.width} × {picture.height}"
        picture.close()
        raise ToolError(
            f"{raw.path} has more pixels than are decoded ({MAX_PIXELS:,}), {size}; make a smaller copy of it"
        )
    return picture


def _fit(raw: RawPicture, picture: "Picture") -> FittedPicture:
    kind = picture.format or ""
    original = f"{SENT_AS_IS.get(kind, kind.lower())}, {picture.width} × {picture.height}, {len(raw.body):,} bytes"
    is_small = max(picture.size) <= raw.pixels
    if kind in SENT_AS_IS and is_small and len(raw.body) <= raw.bytes:
        picture.load()  # decode it fully, else a truncated file would be sent on
        return FittedPicture(raw.body, SENT_AS_IS[kind], *picture.size, is_scaled=False, note="")
    frames = getattr(picture, "n_frames", 1)
    upright = _turn_upright(picture, raw.pixels)
    sent = _encode(raw, upright, kind)
    scaled = kind in SENT_AS_IS or not is_small or sent.format != "png" or sent.width < upright.width
    note = f"{'made to fit' if scaled else 'converted'} from {original}"
    if frames > 1:
        note += f", the first of {frames} frames"
    return msgspec.structs.replace(sent, is_scaled=scaled, note=note)


def _turn_upright(picture: "Picture", edge: int) -> "Picture":
    """Return the picture decoded, shrunk near that edge, rotated by its EXIF, in a mode of PNG and JPEG."""
    from PIL import ImageOps  # start-up

    if picture.format == "JPEG":
        picture.draft("RGB", (edge, edge))  # decode at a reduced size, if still above the limit
    profile = picture.info.get("icc_profile")
    orientation = picture.getexif().get(ORIENTATION)
    keeps_colours = picture.mode != "CMYK" and not picture.mode.startswith("I")
    smaller = _shrink_coarsely(picture, max(1, max(picture.size) // (COARSE_FACTOR * edge)))
    smaller.info = {"icc_profile": profile} if profile and keeps_colours and len(profile) < PROFILE else {}
    if orientation:
        smaller.getexif()[ORIENTATION] = orientation
        ImageOps.exif_transpose(smaller, in_place=True)
        smaller.info.pop("exif", None)
    return smaller


def _shrink_coarsely(picture: "Picture", factor: int) -> "Picture":
    """Return a converted copy, smaller by a whole factor."""
    from PIL import Image as pillow  # noqa: N813  # start-up

    picture.load()
    mode = _mode(picture)
    width, height = picture.size
    smaller = pillow.new(mode, (-(-width // factor), -(-height // factor)))
    rows = factor * max(1, STRIP // (width * factor))
    for top in range(0, height, rows):
        strip = _convert_strip(picture.crop((0, top, width, min(top + rows, height))), mode)
        smaller.paste(strip.reduce(factor) if factor > 1 else strip, (0, top // factor))
    return smaller


def _mode(picture: "Picture") -> str:
    if picture.mode.startswith("I"):  # 16 bits and more of grey
        return "L"
    return "RGBA" if picture.has_transparency_data else "L" if picture.mode in ("1", "L", "F") else "RGB"


def _convert_strip(strip: "Picture", mode: str) -> "Picture":
    if strip.mode.startswith("I"):
        return strip.convert("I").point(lambda value: value / 256).convert("L")
    return strip.convert(mode)


def _encode(raw: RawPicture, picture: "Picture", kind: str) -> FittedPicture:
    """Return the largest that fits: PNG for a lossless original, else JPEG, then smaller and smaller."""
    edge = min(raw.pixels, max(picture.size))
    least = min(edge, SMALLEST)
    while edge >= least:
        candidate = _within(picture, edge)
        if kind not in ("JPEG", "MPO"):
            data = _save(candidate, "PNG")
            if len(data) <= raw.bytes:
                return FittedPicture(data, "png", *candidate.size, is_scaled=True, note="")
        for quality in QUALITIES:
            data = _save(_flat(candidate), "JPEG", quality=quality, optimize=True)
            if len(data) <= raw.bytes:
                return FittedPicture(data, "jpeg", *candidate.size, is_scaled=True, note="")
        edge = int(edge * SMALLER)
    raise ToolError(f"{raw.path} can't be made to fit {raw.bytes:,} bytes")


def _within(picture: "Picture", edge: int) -> "Picture":
    if max(picture.size) <= edge:
        return picture
    smaller = picture.copy()
    smaller.thumbnail((edge, edge))
    return smaller


def _flat(picture: "Picture") -> "Picture":
    """Return the picture on white, since JPEG has no transparency."""
    from PIL import Image as pillow  # noqa: N813  # start-up

    if picture.mode != "RGBA":
        return picture
    white = pillow.new("RGBA", picture.size, "white")
    return pillow.alpha_composite(white, picture).convert("RGB")


def _save(picture: "Picture", kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, kind, icc_profile=picture.info.get("icc_profile"), **options)
    return buffer.getvalue()
