"""ReadImage: a picture from a file, made to fit what clients take. Knows Pillow; knows no rules about files.

The workspace hands over the bytes and decides which files those may be. All decoding happens in a thread.
"""

import asyncio
import warnings
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from toolgate.tools.content import Image, Output, Text
from toolgate.tools.context import Context
from toolgate.tools.errors import ToolError
from toolgate.tools.tool import tool

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_FILE = 64 * 2**20  # bytes; the largest photographs are about half of it
MAX_PIXELS = 64_000_000  # decoded they take 256 MB
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "DIB", "TIFF")  # no other decoder sees foreign bytes
# An MPO is a JPEG with more pictures behind the first, as some telephones write them.
SENT_AS_IS = {"PNG": "png", "JPEG": "jpeg", "MPO": "jpeg", "GIF": "gif", "WEBP": "webp"}
QUALITIES = (85, 70, 50)  # of JPEG, tried in turn before the picture is made smaller
SMALLER = 0.7  # of its edges
SMALLEST = 16  # pixels of the long edge: below that no budget is met
PROFILE = 32_768  # bytes; a larger colour profile is not worth its place in the budget


class Shape(msgspec.Struct, frozen=True):
    """The picture as it was sent: `bytes` before base64, `scaled` when it had to be made to fit."""

    format: str
    width: int
    height: int
    bytes: int
    scaled: bool


class Fit(msgspec.Struct, frozen=True):
    """What a picture must fit: `bytes` before base64, `pixels` on its long edge."""

    bytes: int
    pixels: int


@tool(
    name="ReadImage",
    title="Look at an image",
    read_only=True,
    idempotent=True,
    open_world=False,
    output=Shape,
    scope="tools:read",
)
async def read_image(file_path: Annotated[str, "absolute path"], ctx: Context) -> Output:
    """Look at an image file: png, jpeg, gif, webp, bmp or tiff, told by its content. Returns the image and
    its format, size and bytes. One too large for the client is scaled down, and the text says so; of a too
    large animation the first frame is shown.
    """
    settings = ctx.settings
    data = await ctx.workspace.read_file(file_path, MAX_FILE, anywhere=settings.any_file)
    if not data:
        raise ToolError(f"{file_path} is empty")
    fit = Fit(settings.image_bytes // 4 * 3, settings.image_pixels)
    return await asyncio.to_thread(_answer, file_path, data, fit)


def _answer(path: str, data: bytes, fit: Fit) -> Output:
    # A decoder fed foreign bytes raises whatever it trips over (OSError, SyntaxError, struct.error, …).
    try:
        with _opened(path, data) as picture:
            return _fitted(path, data, picture, fit)
    except ToolError:
        raise
    except MemoryError:
        raise ToolError(f"{path} needs more memory to decode than there is") from None
    except Exception as error:  # noqa: BLE001
        raise ToolError(f"{path} is damaged or cut short: {_said(error)}") from None


def _opened(path: str, data: bytes) -> "Picture":
    """The picture behind `data`, its header read and nothing decoded yet."""
    from PIL import Image as pillow  # noqa: N813  # start-up
    from PIL import UnidentifiedImageError

    warnings.simplefilter("error", pillow.DecompressionBombWarning)
    try:
        picture = pillow.open(BytesIO(data), formats=FORMATS)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        raise ToolError(_too_many(path)) from None
    except UnidentifiedImageError:
        kind = "text" if _is_text(data) else "something else, or damaged"
        raise ToolError(f"{path} is not a png, jpeg, gif, webp, bmp or tiff image but {kind}") from None
    if picture.width * picture.height > MAX_PIXELS:
        picture.close()
        raise ToolError(f"{_too_many(path)}: it has {picture.width} × {picture.height}")
    return picture


def _fitted(path: str, data: bytes, picture: "Picture", fit: Fit) -> Output:
    kind = picture.format or ""
    original = f"{SENT_AS_IS.get(kind, kind.lower())}, {picture.width} × {picture.height}, {len(data):,} bytes"
    is_small = max(picture.size) <= fit.pixels
    if kind in SENT_AS_IS and is_small and len(data) <= fit.bytes:
        picture.load()  # or a file cut short would be sent on
        shape = Shape(SENT_AS_IS[kind], picture.width, picture.height, len(data), scaled=False)
        return _output(path, data, shape, "")
    frames = getattr(picture, "n_frames", 1)
    if kind == "JPEG":
        picture.draft("RGB", (fit.pixels, fit.pixels))  # decoded at a fraction of its size, if still above
    upright = _upright(picture)
    sent, shape = _encoded(path, upright, kind, fit)
    scaled = kind in SENT_AS_IS or not is_small or shape.format != "png" or shape.width < upright.width
    note = f"{'made to fit' if scaled else 'converted'} from {original}"
    if frames > 1:
        note += f", the first of {frames} frames"
    return _output(path, sent, msgspec.structs.replace(shape, scaled=scaled), note)


def _upright(picture: "Picture") -> "Picture":
    """Decoded, turned as its EXIF orientation says, and in a mode that PNG and JPEG know."""
    from PIL import ImageOps  # start-up

    profile = picture.info.get("icc_profile")
    turned = ImageOps.exif_transpose(picture)
    has_alpha = turned.has_transparency_data
    if turned.mode.startswith("I"):  # 16 bits and more of grey
        return turned.convert("I").point(lambda value: value / 256).convert("L")
    upright = turned.convert("RGBA" if has_alpha else "L" if turned.mode in ("1", "L", "F") else "RGB")
    upright.info = {"icc_profile": profile} if profile and turned.mode != "CMYK" and len(profile) < PROFILE else {}
    return upright


def _encoded(path: str, picture: "Picture", kind: str, fit: Fit) -> tuple[bytes, Shape]:
    """The largest that fits: as PNG where the original may be lossless, else as JPEG, then ever smaller."""
    edge = min(fit.pixels, max(picture.size))
    while edge >= SMALLEST:
        candidate = _within(picture, edge)
        if kind not in ("JPEG", "MPO"):
            data = _saved(candidate, "PNG")
            if len(data) <= fit.bytes:
                return data, Shape("png", *candidate.size, len(data), scaled=True)
        for quality in QUALITIES:
            data = _saved(_flat(candidate), "JPEG", quality=quality, optimize=True)
            if len(data) <= fit.bytes:
                return data, Shape("jpeg", *candidate.size, len(data), scaled=True)
        edge = int(edge * SMALLER)
    raise ToolError(f"{path} can't be made to fit {fit.bytes:,} bytes")


def _within(picture: "Picture", edge: int) -> "Picture":
    if max(picture.size) <= edge:
        return picture
    smaller = picture.copy()
    smaller.thumbnail((edge, edge))
    return smaller


def _flat(picture: "Picture") -> "Picture":
    """On white, since JPEG has no transparency."""
    from PIL import Image as pillow  # noqa: N813  # start-up

    if picture.mode != "RGBA":
        return picture
    white = pillow.new("RGBA", picture.size, "white")
    return pillow.alpha_composite(white, picture).convert("RGB")


def _saved(picture: "Picture", kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, kind, icc_profile=picture.info.get("icc_profile"), **options)
    return buffer.getvalue()


def _output(path: str, data: bytes, shape: Shape, note: str) -> Output:
    text = f"{path}: {shape.format}, {shape.width} × {shape.height}, {shape.bytes:,} bytes"
    if note:
        text += f" ({note})"
    return Output([Image(data, f"image/{shape.format}"), Text(text)], shape)


def _too_many(path: str) -> str:
    return f"{path} has more pixels than are decoded ({MAX_PIXELS:,}); make a smaller copy of it"


def _is_text(data: bytes) -> bool:
    return b"\0" not in data[:1024] and data[:1024].isascii()


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
