"""ReadImage shows a picture's pixels as a viewer does: upright, with visible greys, in colours that clients know."""

import io
import math
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image as pillow
from PIL import ImageCms

from tests.tools.image_calls import animation, look, noise, picture, sent, shared_reader
from tests.tools.tool_calls import text
from toolgate.tools.api.content import Image

__all__ = ["shared_reader"]  # a fixture of this module

FORMATS = ["jpeg", "png", "webp", "tiff", "avif"]
FLIPS = {  # orientation → how its pixels are stored
    1: None,
    2: pillow.Transpose.FLIP_LEFT_RIGHT,
    3: pillow.Transpose.ROTATE_180,
    4: pillow.Transpose.FLIP_TOP_BOTTOM,
    5: pillow.Transpose.TRANSPOSE,
    6: pillow.Transpose.ROTATE_90,
    7: pillow.Transpose.TRANSVERSE,
    8: pillow.Transpose.ROTATE_270,
}


def corners(size: tuple[int, int] = (200, 100)) -> pillow.Image:
    """Return a white picture with a red corner at the top left and a blue one at the top right."""
    upright = pillow.new("RGB", size, "white")
    width, height = size[0] // 4, size[1] // 4
    upright.paste("red", (0, 0, width, height))
    upright.paste("blue", (size[0] - width, 0, *(size[0], height)))
    return upright


def turned(kind: str, orientation: int, size: tuple[int, int] = (200, 100)) -> bytes:
    """Return that picture stored as the orientation says."""
    exif = pillow.Exif()
    exif[0x0112] = orientation
    flip = FLIPS[orientation]
    stored = corners(size) if flip is None else corners(size).transpose(flip)
    buffer = io.BytesIO()
    options: dict[str, Any] = {"speed": 10} if kind == "avif" else {}
    stored.save(buffer, kind, exif=exif, **options)
    return buffer.getvalue()


def is_upright(shown: pillow.Image) -> bool:
    """Return whether the red corner is at the top left and the blue one at the top right."""
    flat = shown.convert("RGB")
    left, right = flat.getpixel((8, 8)), flat.getpixel((shown.width - 9, 8))
    assert isinstance(left, tuple)
    assert isinstance(right, tuple)
    return left[0] > 200 > 80 > left[2] and right[2] > 200 > 80 > right[0]


@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_small_picture_is_upright(kind: str, orientation: int) -> None:
    output = look(turned(kind, orientation))
    shown = sent(output)
    assert shown.size == (200, 100)
    assert is_upright(shown)
    assert shown.getexif().get(0x0112, 1) == 1
    assert output.structured["scaled"] is False


@pytest.mark.parametrize("orientation", [3, 6, 7])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_large_picture_is_upright(kind: str, orientation: int) -> None:
    shown = sent(look(turned(kind, orientation, (400, 200)), image_pixels=150))
    assert shown.size == (150, 75)
    assert is_upright(shown)


def test_a_picture_that_is_turned_says_so() -> None:
    for kind in FORMATS:
        assert text(look(turned(kind, 6))).count("turned upright") == 1
        assert "turned" not in text(look(turned(kind, 1)))


def test_the_orientation_of_a_png_may_follow_its_pixels() -> None:
    data = turned("png", 6)
    start = data.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(data[start : start + 4], "big")
    moved = data[:start] + data[end:-12] + data[start:end] + data[-12:]
    assert is_upright(sent(look(moved)))


@pytest.mark.parametrize("value", [0, 9, 255, 65535])
def test_an_orientation_that_means_nothing_is_left_out(value: int) -> None:
    exif = pillow.Exif()
    exif[0x0112] = value
    data = picture("jpeg", exif=exif)
    assert look(data).content[0] == Image(data, "image/jpeg")


def grey(mode: str, form: str, value: Callable[[int], float], kind: str = "tiff") -> bytes:
    """Return a picture of 100 columns: `value` of its number is the value of each."""
    row = struct.pack(f"<100{form}", *map(value, range(100)))
    buffer = io.BytesIO()
    pillow.frombytes(mode, (100, 20), row * 20).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (grey("F", "f", lambda x: x / 99), "0 to 1"),
        (grey("F", "f", lambda x: x - 50.0), "-50 to 49"),
        (grey("F", "f", lambda x: x * 1e6), "0 to 9.9e+07"),
        (grey("F", "f", lambda x: x * 1e-9), "0 to 9.9e-08"),
        (grey("F", "f", lambda x: math.nan if x == 0 else x), "pixels without a value are black"),
        (grey("F", "f", lambda x: math.inf if x == 50 else x), "pixels without a value are black"),
        (grey("F", "f", lambda x: -3.4e38 if x == 50 else x), "pixels without a value are black"),
        (grey("I;16", "H", lambda x: x * 41), "0 to 4059"),
        (grey("I;16", "H", lambda x: 30_000 + x), "30000 to 30099"),
        (grey("I;16", "H", lambda x: x * 41, "png"), "0 to 4059"),
        (grey("I", "i", lambda x: x * 2), "0 to 198"),
        (grey("I", "i", lambda x: x * 20 - 1000), "-1000 to 980"),
        (grey("I", "i", lambda x: x * 20_000_000 - 10**9), "-1e+09 to 9.8e+08"),
    ],
)
def test_greys_of_any_range_are_stretched_to_black_and_white(data: bytes, note: str) -> None:
    output = look(data)
    shown = sent(output).convert("L")
    assert shown.getextrema() == (0, 255)
    assert shown.getpixel((25, 5)) < shown.getpixel((75, 5))  # type: ignore[operator]
    assert note in text(output)


@pytest.mark.parametrize("kind", ["tiff", "png"])
def test_greys_of_all_16_bits_are_shown_as_they_are(kind: str) -> None:
    output = look(grey("I;16", "H", lambda x: x * 660, kind))
    assert sent(output).convert("L").getpixel((50, 5)) == 128
    assert "stretched" not in text(output)


@pytest.mark.parametrize(
    ("data", "shade"),
    [
        (grey("F", "f", lambda _: 0.5), 127),
        (grey("F", "f", lambda _: 77.0), 77),
        (grey("F", "f", lambda _: -1e9), 127),
        (grey("F", "f", lambda _: math.nan), 0),
        (grey("I;16", "H", lambda _: 32_768), 127),
        (grey("I", "i", lambda _: 0), 0),
    ],
)
def test_a_picture_of_one_grey_is_shown(data: bytes, shade: int) -> None:
    output = look(data)
    assert sent(output).convert("L").getextrema() == (shade, shade)
    assert "each pixel has the value" in text(output) or "no pixel has a value" in text(output)


def tagged(data: bytes, tag: int, value: Any) -> bytes:
    """Return a TIFF with a tag set."""
    with pillow.open(io.BytesIO(data)) as opened:
        buffer = io.BytesIO()
        opened.save(buffer, "TIFF", tiffinfo={tag: value})
    return buffer.getvalue()


def test_the_value_that_stands_for_none_does_not_count() -> None:
    data = tagged(grey("F", "f", lambda x: -9999.0 if x < 10 else x), 42_113, "-9999")
    output = look(data)
    assert "10 to 99" in text(output)
    assert sent(output).convert("L").getpixel((5, 5)) == 0


def test_a_tiff_whose_smallest_value_is_white_is_not_shown_as_a_negative() -> None:
    data = bytearray(grey("I;16", "H", lambda x: x * 41))
    entry = struct.pack("<HHI", 262, 3, 1)
    place = data.index(entry) + len(entry)
    data[place : place + 2] = struct.pack("<H", 0)
    shown = sent(look(bytes(data))).convert("L")
    assert shown.getpixel((0, 0)) == 255
    assert shown.getpixel((99, 0)) == 0


def deep_png(colour_type: int, largest: int) -> bytes:
    """Return a PNG with 16 bits a sample whose values rise from left to right; its alpha is full."""
    samples = {2: 3, 4: 2, 6: 4}[colour_type]
    alpha = colour_type in (4, 6)
    row = b"\0"
    for column in range(100):
        row += struct.pack(">H", column * largest // 99) * (samples - alpha) + (b"\xff\xff" if alpha else b"")
    chunks = (b"IHDR", struct.pack(">IIBBBBB", 100, 20, 16, colour_type, 0, 0, 0)), (b"IDAT", zlib.compress(row * 20))
    body = b"\x89PNG\r\n\x1a\n"
    for kind, data in (*chunks, (b"IEND", b"")):
        body += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return body


@pytest.mark.parametrize("colour_type", [2, 4, 6])
def test_12_bits_in_colours_of_16_are_visible(colour_type: int) -> None:
    output = look(deep_png(colour_type, 4095))
    shown = sent(output)
    assert shown.convert("RGB").convert("L").getextrema() == (0, 255)
    assert shown.convert("RGBA").getchannel("A").getextrema() == (255, 255)
    assert "its colours use 6% of their range" in text(output)
    bright = deep_png(colour_type, 65_535)
    assert look(bright).content[0] == Image(bright, "image/png")


@pytest.mark.parametrize("colour", [(255, 0, 0), (0, 128, 255), (255, 255, 255)])
def test_a_cmyk_jpeg_is_sent_in_rgb(colour: tuple[int, int, int]) -> None:
    buffer = io.BytesIO()
    pillow.new("RGB", (40, 40), colour).convert("CMYK").save(buffer, "JPEG")
    output = look(buffer.getvalue())
    shown = sent(output)
    assert (shown.mode, output.structured["scaled"]) == ("RGB", False)
    pixel = shown.getpixel((20, 20))
    assert isinstance(pixel, tuple)
    assert all(abs(value - wanted) < 12 for value, wanted in zip(pixel, colour, strict=True))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_a_png_of_a_usual_kind_is_sent_as_it_is(mode: str) -> None:
    data = picture("png", mode=mode)
    assert look(data).content[0] == Image(data, "image/png")


@pytest.mark.parametrize("kind", ["bmp", "tiff"])
@pytest.mark.parametrize("mode", ["1", "P"])
def test_black_and_white_and_palettes_keep_their_colours(kind: str, mode: str) -> None:
    buffer = io.BytesIO()
    corners().convert(mode, dither=pillow.Dither.NONE).save(buffer, kind)
    shown = sent(look(buffer.getvalue())).convert("RGB")
    assert shown.getpixel((100, 90)) == (255, 255, 255)
    assert shown.getpixel((8, 8)) != (255, 255, 255)


def test_transparency_of_a_palette_stays() -> None:
    buffer = io.BytesIO()
    with_hole = pillow.new("P", (2100, 10), 1)
    with_hole.putpalette([0, 0, 0, 255, 0, 0])
    with_hole.paste(0, (0, 0, 1000, 10))
    with_hole.save(buffer, "PNG", transparency=0)
    shown = sent(look(buffer.getvalue())).convert("RGBA")
    assert shown.getpixel((5, 5))[3] == 0  # type: ignore[index]
    assert shown.getpixel((1990, 5)) == (255, 0, 0, 255)


def test_a_lab_tiff_is_shown_in_rgb() -> None:
    to_lab = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")
    lab = ImageCms.applyTransform(pillow.new("RGB", (40, 40), (200, 30, 30)), to_lab)
    assert lab is not None
    buffer = io.BytesIO()
    lab.save(buffer, "TIFF")
    pixel = sent(look(buffer.getvalue())).convert("RGB").getpixel((20, 20))
    assert isinstance(pixel, tuple)
    assert pixel[0] > 180 > 60 > pixel[1]


@pytest.mark.parametrize("kind", ["gif", "webp", "png"])
def test_an_animation_that_is_sent_as_it_is_says_so(kind: str) -> None:
    data = animation(kind, (50, 50))
    output = look(data)
    assert output.content[0] == Image(data, f"image/{kind}")
    assert "an animation of 3 frames: a model may see only the first" in text(output)
    assert output.structured["note"] in text(output)


def test_the_first_page_of_a_tiff_is_shown_and_the_others_are_counted() -> None:
    assert "the first of 3 pages" in text(look(animation("tiff", (50, 50))))


def test_an_avif_of_a_photo_is_shown_and_made_to_fit() -> None:
    data = noise("avif", (300, 200), speed=10, quality=90)
    output = look(data, image_bytes=40_000)
    assert sent(output).format == "JPEG"
    assert "made to fit from avif, 300 × 200" in text(output)
    assert sent(look(picture("avif", speed=10))).format == "PNG"


@pytest.mark.parametrize("form", ["png", "bmp"])
def test_the_largest_picture_of_an_icon_is_shown(form: str) -> None:
    buffer = io.BytesIO()
    corners((64, 64)).save(buffer, "ICO", sizes=[(16, 16), (32, 32), (64, 64)], bitmap_format=form)
    output = look(buffer.getvalue())
    assert sent(output).size == (64, 64)
    assert is_upright(sent(output))
    assert "the largest of 3 sizes" in text(output)
