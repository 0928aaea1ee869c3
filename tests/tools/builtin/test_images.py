"""ReadImage on generated pictures: what is sent as it is, and what is made to fit."""

import io
import random
import struct
import zlib
from typing import Any

import pytest
from PIL import Image as pillow
from PIL.PngImagePlugin import PngInfo

from tests.tools.image_calls import OneFileWorkspace, animation, asked, look, noise, picture, sent, shared_reader
from tests.tools.tool_calls import text
from toolgate.tools.api.content import Image, Output, Text
from toolgate.tools.builtin.images import read_image
from toolgate.tools.reading.pages.local_page_reader import MAX_FILE

__all__ = ["shared_reader"]  # a fixture of this module


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "webp"])
def test_a_picture_within_the_budget_is_sent_untouched(kind: str) -> None:
    data = picture(kind)
    output = look(data, "/pictures/named.wrong")
    assert output == Output(
        [
            Image(data, f"image/{kind}"),
            Text(f"/pictures/named.wrong: {kind}, 60 × 40, {len(data):,} bytes"),
        ],
        {"format": kind, "width": 60, "height": 40, "bytes": len(data), "scaled": False},
    )


@pytest.mark.parametrize("kind", ["bmp", "tiff"])
def test_formats_that_clients_do_not_show_become_png(kind: str) -> None:
    output = look(picture(kind))
    assert sent(output).format == "PNG"
    assert output.structured["scaled"] is False
    assert f"converted from {kind}, 60 × 40" in text(output)


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (15, 4)])
@pytest.mark.parametrize("kind", ["bmp", "tiff"])
def test_a_picture_of_a_few_pixels_is_read(kind: str, size: tuple[int, int]) -> None:
    assert sent(look(picture(kind, size))).size == size


@pytest.mark.parametrize("kind", ["png", "gif"])
def test_a_picture_of_a_few_pixels_in_a_large_file_is_read(kind: str) -> None:
    much = "much" * 300_000
    comment: dict[str, Any] = {"comment": much.encode()}
    if kind == "png":
        comment = {"pnginfo": PngInfo()}
        comment["pnginfo"].add_text("much", much)
    output = look(picture(kind, (8, 8), "L", **comment))
    assert sent(output).size == (8, 8)
    assert output.structured["bytes"] < 1_000


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "F"])
def test_every_mode_of_a_tiff_is_shown(mode: str) -> None:
    buffer = io.BytesIO()
    pillow.new(mode, (30, 20)).save(buffer, "TIFF")
    assert sent(look(buffer.getvalue())).size == (30, 20)


def test_a_picture_with_too_long_an_edge_is_scaled() -> None:
    output = look(picture("png", (3000, 1000)))
    assert sent(output).size == (2000, 667)
    assert output.structured["scaled"] is True
    assert "made to fit from png, 3000 × 1000" in text(output)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "bmp"])
def test_a_picture_of_too_many_bytes_is_made_to_fit(kind: str) -> None:
    data = noise(kind, (900, 700), **({"quality": 98} if kind in ("jpeg", "webp") else {}))
    output = look(data, image_bytes=100_000)
    assert len(data) > 75_000
    sent(output)
    assert output.structured["bytes"] <= 75_000
    assert output.structured["scaled"] is True
    assert f"made to fit from {kind}, 900 × 700, {len(data):,} bytes" in text(output)


def test_sharp_pictures_stay_png_when_that_fits() -> None:
    assert look(picture("png", (2400, 100))).structured["format"] == "png"


def test_transparency_survives_as_png_and_becomes_white_as_jpeg() -> None:
    clear = pillow.new("RGBA", (2100, 10), (255, 0, 0, 0))
    buffer = io.BytesIO()
    clear.save(buffer, "PNG")
    assert sent(look(buffer.getvalue())).convert("RGBA").getpixel((5, 5))[3] == 0  # type: ignore[index]
    pixels = bytearray(random.Random(7).randbytes(400 * 400 * 4))
    pixels[3::4] = bytes(400 * 400)
    buffer = io.BytesIO()
    pillow.frombytes("RGBA", (400, 400), bytes(pixels)).save(buffer, "PNG")
    shown = sent(look(buffer.getvalue(), image_bytes=20_000))
    assert (shown.format, shown.getpixel((50, 50))) == ("JPEG", (255, 255, 255))


def test_a_large_picture_is_decoded_within_the_workers_memory() -> None:
    buffer = io.BytesIO()
    pillow.new("RGBA", (8000, 7999), (200, 0, 0, 255)).save(buffer, "PNG", compress_level=1)
    output = look(buffer.getvalue())
    assert sent(output).size == (2000, 2000)
    assert sent(output).convert("RGB").getpixel((1999, 1999)) == (200, 0, 0)


def test_making_a_picture_smaller_in_strips_leaves_no_seams() -> None:
    output = look(picture("png", (4010, 9003), "RGBA", compress_level=1))
    shown = sent(output).convert("L")
    assert shown.size == (891, 2000)
    column = [shown.getpixel((400, y)) for y in range(2000)]
    assert all(abs(column[y] - 255 * y / 2000) < 3 for y in range(2000))  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_of_a_too_large_animation_the_first_frame_is_shown(kind: str) -> None:
    small = animation(kind, (50, 50))
    assert look(small).content[0] == Image(small, f"image/{kind}")
    output = look(animation(kind, (2500, 10)))
    red, green, blue = sent(output).convert("RGB").getpixel((5, 5))  # type: ignore[misc]
    assert red > 200
    assert green < 60
    assert blue < 60
    assert "the first of 3 frames" in text(output)


def header_only_png(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(9_000, 8_000), (10_000, 10_000), (50_000, 50_000), (2**31 - 1, 2**31 - 1)])
def test_a_decompression_bomb_is_not_decoded(size: tuple[int, int]) -> None:
    output = look(header_only_png(*size))
    assert output.is_error
    assert "more pixels" in text(output)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "is empty"),
        (b"just a text file, really\n", "but text"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "but text"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "but text"),
        (b"\x00\x01\x02\x03" * 50, "something else"),
        (b"\x89PNG\r\n\x1a\n", "damaged"),
        (b"\xff\xd8\xff\xe0", "damaged"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "damaged"),
    ],
)
def test_a_file_that_is_no_picture_is_an_error_that_says_so(data: bytes, named: str) -> None:
    output = look(data)
    assert output.is_error
    assert text(output).startswith("/pictures/a.png")
    assert named in text(output)


def test_damage_anywhere_in_a_file_never_raises() -> None:
    chance = random.Random(1)
    for kind in ("png", "jpeg", "gif", "webp", "bmp", "tiff"):
        data = bytearray(picture(kind))
        for _ in range(40):
            broken = bytearray(data)
            for _ in range(8):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            output = look(bytes(broken))
            assert output.is_error or isinstance(output.content[0], Image)


def test_the_workspace_decides_which_files_may_be_read() -> None:
    workspace = OneFileWorkspace(picture("png"))
    asked(workspace, "/x/y.png")
    asked(workspace, "/x/y.png", any_file=False)
    assert workspace.asked == [("/x/y.png", MAX_FILE, True), ("/x/y.png", MAX_FILE, False)]
    output = look(picture("png"), "relative.png")
    assert output.is_error
    assert text(output) == "relative.png is not an absolute path"


def test_the_description_is_small_and_true() -> None:
    assert len(read_image.description) < 450
    assert read_image.input["required"] == ["file_path"]
    hints = read_image.annotations
    assert (hints.read_only, hints.destructive, hints.idempotent, hints.open_world) == (True, False, True, False)
    assert read_image.scope == "tools:read"
