"""Scale a picture to fit clients' limits, in a worker that may be killed.

Memory holds one decoded copy of a large picture: it is shrunk and converted strip by strip.
"""

import builtins
import codecs
import contextlib
import importlib
import struct
from collections.abc import Generator, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from toolgate.tools.api.errors import ToolError
from toolgate.tools.reading.workers import tones
from toolgate.tools.reading.workers.picture_formats import MAGICK, describe_format, is_decoded
from toolgate.tools.reading.workers.picture_metadata import PNG_END, PNG_SIGNATURE, remove_metadata

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_PIXELS = 64_000_000  # decoded they take at most 4 bytes each
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "AVIF", "ICO")  # no other decoder sees foreign bytes
KINDS = "png, jpeg, gif, webp, bmp, tiff, avif or ico"
# An MPO is a JPEG followed by more pictures, as some telephones write it.
SENT_AS_IS = {"PNG": "png", "JPEG": "jpeg", "MPO": "jpeg", "GIF": "gif", "WEBP": "webp"}
PLAIN_MODES = (
    "1",
    "L",
    "LA",
    "P",
    "RGB",
    "RGBA",
    "RGBX",
)  # every client shows them; CMYK and 16 bits of grey it may not
JPEGS = ("JPEG", "MPO")
ICON = b"\0\0\1\0"
ICON_HEAD, ICON_ENTRY = 6, 16  # bytes before an icon's directory, and of an entry there
OLD_BITMAP = 12  # bytes of the older header of a bitmap, which begins with its size
FRAMES = {"TIFF": "pages", "MPO": "pictures"}  # what a file's further pictures are, if not frames
ANIMATION = "an animation of {} frames: a model may see only the first"
UNREADABLE = "its header can't be read"
ENCODINGS = ("ascii", "latin-1", "utf-8", "utf-16", "utf-16-le", "utf-16-be")  # of texts in and beside pictures
QUALITIES = (85, 70, 50)  # of JPEG, tried in turn before the picture is shrunk
SMALLER = 0.7  # of its edges
SMALLEST = 16  # pixels of the long edge: the smallest size tried
PROFILE = 32_768  # bytes; a larger colour profile costs too much of the budget
STRIP = 2**20  # pixels that are converted at once
COARSE_FACTOR = 2  # multiple of the wanted edge that the fast, coarse shrinking leaves
ORIENTATION = 0x0112  # EXIF
TURNS = {  # orientation → what makes it upright (a member of Pillow's Transpose)
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


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


class Attempt(NamedTuple):
    """One way to read the file: its bytes, a note on them, and whether a part of the picture is enough."""

    body: bytes
    note: str = ""
    is_partial: bool = False


class PictureFaultError(Exception):
    """The picture can't be decoded. The text says why."""


def prepare() -> None:
    """Load all that decoding needs: a confined worker can load nothing later."""
    from PIL import Image as pillow  # noqa: N813  # start-up

    pillow.init()
    for name in ("ImageCms", "ImageColor", "ImageFilter", "ImageOps", "ImagePalette", "TiffImagePlugin"):
        importlib.import_module(f"PIL.{name}")
    for name in ENCODINGS:
        codecs.lookup(name)
    pillow.MAX_IMAGE_PIXELS = None  # Pillow would only warn; `fit_picture` refuses
    with contextlib.suppress(ImportError):  # Pillow < 11.3 reads no AVIF
        avif: Any = importlib.import_module("PIL.AvifImagePlugin")
        avif.DEFAULT_MAX_THREADS = 1  # a confined worker can start no thread


def fit_picture(raw: RawPicture) -> FittedPicture:
    """Return the picture within its limits. Raises ToolError, and MemoryError."""
    faults: list[Exception] = []
    for attempt in _attempts(raw.body):
        # Foreign bytes make a decoder raise anything (OSError, SyntaxError, struct.error, …).
        try:
            with _allow_truncated(attempt.is_partial), _open(raw, attempt.body) as picture:
                return _fit(raw, picture, attempt)
        except (ToolError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001
            faults.append(error)
    reason = " ".join(str(faults[0]).split())[:200] or type(faults[0]).__name__
    raise ToolError(f"{raw.path} is damaged or cut short, or of a rare kind ({reason}); {MAGICK}")


def _attempts(body: bytes) -> Iterator[Attempt]:
    """Yield the ways to read a file, the best first."""
    yield Attempt(body)
    bare = remove_metadata(body)
    if len(bare) < len(body):
        yield Attempt(bare, "its metadata is left out, as it is damaged or too large")
    yield Attempt(bare, "the file is damaged or cut short: this is the part that can be decoded", is_partial=True)


@contextlib.contextmanager
def _allow_truncated(is_allowed: bool) -> Generator[None]:
    from PIL import ImageFile  # start-up

    ImageFile.LOAD_TRUNCATED_IMAGES = is_allowed
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def _open(raw: RawPicture, body: bytes) -> "Picture":
    """Return the picture with only its header read."""
    from PIL import Image as pillow  # noqa: N813  # start-up
    from PIL import UnidentifiedImageError

    if body.startswith(ICON):
        _check_icon(raw.path, body)
    formats = [name for name in FORMATS if name in pillow.OPEN]
    try:
        picture = pillow.open(BytesIO(body), formats=formats)
    except UnidentifiedImageError:
        if is_decoded(body, formats):
            raise PictureFaultError(UNREADABLE) from None
        raise ToolError(f"{raw.path} is not a {KINDS} image but {describe_format(body, raw.path)}") from None
    if picture.width * picture.height > MAX_PIXELS:
        size = picture.size
        picture.close()
        raise _create_size_error(raw.path, size)
    return picture


def _check_icon(path: str, body: bytes) -> None:
    """Raise ToolError if a picture in the icon is too large: Pillow decodes it when it opens the file."""
    count = int.from_bytes(body[4:6], "little")
    for place in range(ICON_HEAD, min(len(body), ICON_HEAD + ICON_ENTRY * count), ICON_ENTRY):
        start = int.from_bytes(body[place + 12 : place + ICON_ENTRY], "little")
        width, height = _read_size(body[start : start + 24].ljust(24, b"\0"))
        if width * height > MAX_PIXELS:
            raise _create_size_error(path, (width, height))


def _read_size(head: bytes) -> tuple[int, int]:
    """Return the size of a picture in an icon: a PNG, or a bitmap with one of its two headers."""
    if head.startswith(PNG_SIGNATURE):
        width, height = struct.unpack_from(">II", head, 16)
    else:
        width, height = struct.unpack_from("<HH" if head[0] == OLD_BITMAP else "<ii", head, 4)
    return abs(width), abs(height)


def _create_size_error(path: str, size: tuple[int, int]) -> ToolError:
    shown = f"{size[0]} × {size[1]}"
    return ToolError(f"{path} has more pixels than are decoded ({MAX_PIXELS:,}), {shown}; make a smaller copy of it")


def _fit(raw: RawPicture, picture: "Picture", attempt: Attempt) -> FittedPicture:
    kind = picture.format or ""
    original = f"{SENT_AS_IS.get(kind, kind.lower())}, {picture.width} × {picture.height}, {len(raw.body):,} bytes"
    is_small = max(picture.size) <= raw.pixels
    is_within = is_small and len(attempt.body) <= raw.bytes
    frames = _count_frames(picture)
    has_deep_colours = tones.has_deep_colours(picture)
    is_turned_on_load = kind == "TIFF" and _read_orientation(picture) is not None
    if picture.format == "JPEG" and not is_within:
        picture.draft("RGB", (raw.pixels, raw.pixels))  # decode at a reduced size, if still above the limit
    picture.load()  # decode it fully, else a truncated file would be sent on
    if kind == "PNG" and not attempt.is_partial and PNG_END not in attempt.body:
        raise PictureFaultError("its end is missing")
    brightens = has_deep_colours and tones.are_dark(picture)
    if is_within and kind in SENT_AS_IS and not (attempt.is_partial or brightens) and _is_usual(picture):
        notes = [attempt.note, ANIMATION.format(frames) if frames > 1 and kind != "MPO" else ""]
        note = "; ".join(filter(None, notes))
        return FittedPicture(attempt.body, SENT_AS_IS[kind], *picture.size, is_scaled=False, note=note)
    if attempt.is_partial and _is_plain(picture):
        raise PictureFaultError("no part of it can be decoded")
    upright, changes = _convert_upright(picture, raw.pixels, brightens=brightens)
    sent = _encode(raw, upright, kind)
    is_lossy = sent.format != "png" and kind not in JPEGS
    scaled = sent.width < upright.width or is_lossy or not (is_within if kind in SENT_AS_IS else is_small)
    which = f"{'made to fit' if scaled else 'converted'} from {original}{_describe_frame(picture, kind, frames)}"
    turn = "turned upright" if is_turned_on_load else ""
    note = "; ".join(filter(None, [which, turn, *changes, attempt.note]))
    return msgspec.structs.replace(sent, is_scaled=scaled, note=note)


def _count_frames(picture: "Picture") -> int:
    try:
        return int(getattr(picture, "n_frames", 1))
    except Exception:  # noqa: BLE001  # a later frame is damaged
        picture.seek(0)
        return 1


def _describe_frame(picture: "Picture", kind: str, frames: int) -> str:
    if kind == "ICO":
        sizes = len(picture.info.get("sizes", ()))
        return f", the largest of {sizes} sizes" if sizes > 1 else ""
    return f", the first of {frames} {FRAMES.get(kind, 'frames')}" if frames > 1 else ""


def _read_orientation(picture: "Picture") -> int | None:
    """Return the orientation of a loaded picture if it is not upright. Pillow turns a TIFF as it loads it, and finds an
    orientation that follows the pixels of a PNG."""
    try:
        orientation = picture.getexif().get(ORIENTATION)
    except Exception:  # noqa: BLE001  # damaged metadata
        return None
    return orientation if isinstance(orientation, int) and orientation in range(2, 9) else None


def _is_usual(picture: "Picture") -> bool:
    """Return whether every client shows a loaded picture as it is meant."""
    return picture.mode in PLAIN_MODES and _read_orientation(picture) is None


def _convert_upright(picture: "Picture", edge: int, *, brightens: bool) -> tuple["Picture", list[str]]:
    """Return a loaded picture shrunk near that edge, upright, in a mode of PNG and JPEG; and notes."""
    from PIL import Image as pillow  # noqa: N813  # start-up

    profile = picture.info.get("icc_profile")
    orientation = _read_orientation(picture)
    conversion = tones.choose_conversion(picture, _mode(picture), _cut_strips(picture, 1), brightens=brightens)
    smaller = _shrink_coarsely(picture, max(1, max(picture.size) // (COARSE_FACTOR * edge)), conversion)
    notes = [conversion.note]
    if orientation is not None:
        smaller = smaller.transpose(pillow.Transpose[TURNS[orientation]])
        notes.insert(0, "turned upright")
    smaller.info = {"icc_profile": profile} if _is_profile_of(profile, smaller.mode, picture.mode) else {}
    return smaller, notes


def _is_plain(picture: Any) -> bool:
    """Return whether all pixels are the same."""
    bounds = picture.getextrema()
    return all(low == high for low, high in (bounds if isinstance(bounds[0], tuple) else [bounds]))


def _is_profile_of(profile: object, mode: str, original: str) -> bool:
    """Return whether a colour profile is small, whole, and one for this mode (ICC.1:2022, 7.2)."""
    if not isinstance(profile, bytes) or len(profile) >= PROFILE or original[0] in "CIF":
        return False
    return profile[36:40] == b"acsp" and profile[16:20] == (b"GRAY" if mode == "L" else b"RGB ")


def _shrink_coarsely(picture: "Picture", factor: int, conversion: tones.ToneConversion) -> "Picture":
    """Return a converted copy, smaller by a whole factor."""
    from PIL import Image as pillow  # noqa: N813  # start-up

    width, height = picture.size
    smaller = pillow.new(_mode(picture), (-(-width // factor), -(-height // factor)))
    top = 0
    for strip in _cut_strips(picture, factor):
        converted = conversion.convert(strip)
        smaller.paste(converted.reduce(factor) if factor > 1 else converted, (0, top // factor))
        top += strip.height
    return smaller


def _cut_strips(picture: "Picture", factor: int) -> Iterator["Picture"]:
    """Yield the picture in strips whose height is a multiple of `factor`, except the last."""
    width, height = picture.size
    rows = factor * max(1, STRIP // (width * factor))
    for top in range(0, height, rows):
        yield picture.crop((0, top, width, min(top + rows, height)))


def _mode(picture: "Picture") -> str:
    if tones.is_deep(picture):
        return "L"
    return "RGBA" if picture.has_transparency_data else "L" if picture.mode in ("1", "L") else "RGB"


def _encode(raw: RawPicture, picture: "Picture", kind: str) -> FittedPicture:
    """Return the largest that fits: PNG for a lossless original, else JPEG, then smaller and smaller."""
    edge = min(raw.pixels, max(picture.size))
    least = min(edge, SMALLEST)
    while edge >= least:
        candidate = _within(picture, edge)
        if kind not in JPEGS:
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
