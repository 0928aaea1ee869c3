"""ReadImage shows what a file has of a picture, and names what it can't show: metadata, damage, other formats."""

import io
import random
import struct
import zlib
from typing import Any

import pytest
from PIL import Image as pillow
from PIL.PngImagePlugin import PngInfo

from tests.tools.image_calls import animation, look, noise, picture, sent, shared_reader
from tests.tools.tool_calls import text
from toolgate.tools.api.content import Image

__all__ = ["shared_reader"]  # a fixture of this module


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_chunk(kind: bytes, data: bytes, png: bytes | None = None) -> bytes:
    """Return a PNG with one more chunk after its header."""
    png = picture("png") if png is None else png
    return png[:33] + png_chunk(kind, data) + png[33:]


def with_segment(marker: int, data: bytes) -> bytes:
    """Return a JPEG with one more segment at its beginning."""
    jpeg = picture("jpeg")
    return jpeg[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data + jpeg[2:]


MUCH = zlib.compress(b"a" * 3_000_000)


@pytest.mark.parametrize(
    "data",
    [
        with_chunk(b"zTXt", b"workflow\0\0" + MUCH),
        with_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + MUCH),
        with_chunk(b"iCCP", b"huge\0\0" + MUCH),
        with_chunk(b"iCCP", b"no method\0\7" + MUCH),
        with_chunk(b"iCCP", b"no separator"),
        with_chunk(b"zTXt", b"odd\0\7abc"),
        with_chunk(b"pHYs", b"\0"),
        with_chunk(b"gAMA", b"\0"),
        with_chunk(b"cHRM", b"\0"),
        with_chunk(b"sRGB", b""),
        with_chunk(b"eXIf", b"no exif at all"),
        with_chunk(b"eXIf", b"MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 20),
        with_chunk(b"acTL", b"\0"),
        with_chunk(b"fcTL", b"\0" * 26),
        with_chunk(b"tEXt", b"Comment\0" + b"x" * 2_000_000),
    ],
)
def test_metadata_never_makes_a_png_damaged(data: bytes) -> None:
    output = look(data)
    assert sent(output).size == (60, 40)
    assert output.structured["format"] == "png"
    assert "damaged or cut" not in text(output)


def test_a_png_with_many_large_texts_is_shown() -> None:
    info = PngInfo()
    for number in range(70):
        info.add_text(f"part {number}", "a" * 1_000_000, zip=True)
    output = look(picture("png", pnginfo=info))
    assert sent(output).size == (60, 40)
    assert "its metadata is left out" in text(output)


@pytest.mark.parametrize(
    "data",
    [
        with_segment(0xE1, b"Exif\0\0" + b"\xff" * 100),
        with_segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 20),
        with_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + b"<" * 1000),
        with_segment(0xE2, b"ICC_PROFILE\0\1\1" + b"nonsense" * 100),
        with_segment(0xE2, b"ICC_PROFILE\0\7\1"),
        with_segment(0xE2, b"ICC_PROFILE\0"),
        with_segment(0xE2, b"MPF\0II*\0\x08\0\0\0\xff\xff"),
        with_segment(0xE2, b"MPF\0" + b"\xff" * 64),
        with_segment(0xED, b"Photoshop 3.0\0" + b"8BIM\x03\xed\0\0" + b"\xff" * 8),
        with_segment(0xED, b"Photoshop 3.0\0" + b"8BIM\x03\xed\0\0\0\0\0\1x"),
        with_segment(0xED, b"Photoshop 3.0\0" + b"8BIM\x03\xed"),
        with_segment(0xEE, b"Adobe"),
        with_segment(0xE0, b"JFIF"),
        with_segment(0xFE, b""),
    ],
)
@pytest.mark.parametrize("pixels", [2000, 30])
def test_metadata_never_makes_a_jpeg_damaged(data: bytes, pixels: int) -> None:
    output = look(data, image_pixels=pixels)
    assert max(sent(output).size) == min(60, pixels)
    assert "damaged or cut" not in text(output)


@pytest.mark.parametrize("kind", ["webp", "tiff"])
@pytest.mark.parametrize("exif", [b"", b"nonsense", b"MM\0*\0\0\0\x08\xff\xff\xff\xff", b"II*\0\xff\xff\xff\xff"])
def test_damaged_exif_never_keeps_a_picture_from_being_shown(kind: str, exif: bytes) -> None:
    data = picture(kind, exif=b"Exif\0\0" + exif) if kind != "tiff" else tiff_with_exif(exif)
    assert sent(look(data)).size == (60, 40)


def tiff_with_exif(exif: bytes) -> bytes:
    """Return a TIFF whose EXIF directory is those bytes."""
    buffer = io.BytesIO()
    pillow.linear_gradient("L").resize((60, 40)).save(buffer, "TIFF", tiffinfo={0x8769: 1_000})
    data = bytearray(buffer.getvalue())
    entry = data.index(struct.pack("<HHI", 0x8769, 4, 1))
    data[entry + 8 : entry + 12] = struct.pack("<I", len(data))
    return bytes(data) + exif


def test_a_colour_profile_that_is_none_is_not_passed_on() -> None:
    output = look(picture("png", (3000, 100), icc_profile=b"nonsense" * 20))
    assert "icc_profile" not in sent(output).info


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "tiff"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_of_a_file_cut_short_the_part_that_is_there_is_shown(kind: str, share: float) -> None:
    data = noise(kind, (200, 200))
    output = look(data[: int(len(data) * share)])
    assert sent(output).size == (200, 200)
    assert "damaged or cut short: this is the part that can be decoded" in text(output)
    top = sent(output).convert("L").crop((0, 0, 200, 40))
    low, high = top.getextrema()
    assert high - low > 100  # type: ignore[operator]


@pytest.mark.parametrize("lost", [1, 4, 8, 12, 16, 22])
@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_a_file_that_lacks_its_last_bytes_is_not_sent_as_it_is(kind: str, lost: int) -> None:
    data = noise(kind, (60, 40))[:-lost]
    output = look(data)
    assert sent(output).size == (60, 40)
    assert output.content[0] != Image(data, f"image/{kind}")
    assert "damaged or cut short" in text(output)


def test_bytes_after_the_end_of_a_png_do_no_harm() -> None:
    data = picture("png") + b"more"
    assert look(data).content[0] == Image(data, "image/png")


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_the_part_of_a_large_file_cut_short_is_upright_and_made_to_fit(kind: str) -> None:
    exif = pillow.Exif()
    exif[0x0112] = 6
    data = noise(kind, (300, 200), exif=exif)
    output = look(data[: len(data) // 2], image_pixels=150)
    assert sent(output).size == (100, 150)
    assert "damaged or cut short" in text(output)


def test_a_later_frame_that_is_damaged_does_not_hide_the_first() -> None:
    data = animation("gif", (2_500, 20))
    output = look(data[: len(data) - 40])
    red, _, blue = sent(output).convert("RGB").getpixel((5, 5))  # type: ignore[misc]
    assert red > 200 > 60 > blue


def test_a_png_that_is_wrong_in_its_middle_shows_what_is_before_it() -> None:
    data = bytearray(noise("png", (200, 200)))
    data[len(data) // 2 : len(data) // 2 + 2_000] = bytes(2_000)
    output = look(bytes(data))
    assert sent(output).size == (200, 200)
    assert "damaged" in text(output)


@pytest.mark.parametrize(
    "data",
    [
        noise("webp", (200, 200))[:9_000],
        noise("png", (200, 200))[:45],
        noise("jpeg", (200, 200))[:100],
        noise("jpeg", (200, 200)).partition(b"\xff\xda")[0],
        noise("gif", (200, 200))[:12],
        noise("bmp", (200, 200))[:54],
        noise("tiff", (200, 200))[:60],
        picture("avif", speed=10)[:200],
    ],
)
def test_a_file_of_which_nothing_is_there_is_an_error(data: bytes) -> None:
    output = look(data)
    assert output.is_error
    assert "damaged" in text(output)
    assert output.structured is None


def test_a_header_without_pixels_is_no_black_picture() -> None:
    png = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 800, 800, 8, 2, 0, 0, 0))
    output = look(png + png_chunk(b"IDAT", zlib.compress(b"")) + png_chunk(b"IEND", b""))
    assert output.is_error
    assert "damaged" in text(output)


def icon(*entries: bytes) -> bytes:
    """Return an icon whose directory calls each entry 16 pixels wide."""
    place = 6 + 16 * len(entries)
    head = struct.pack("<HHH", 0, 1, len(entries))
    for entry in entries:
        head += struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(entry), place)
        place += len(entry)
    return head + b"".join(entries)


@pytest.mark.parametrize(
    "entry",
    [
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 8, 6, 0, 0, 0)),
        struct.pack("<IIIHH", 40, 30_000, 60_000, 1, 32) + bytes(100),
    ],
)
def test_an_icon_is_no_way_around_the_limit_of_pixels(entry: bytes) -> None:
    output = look(icon(picture("png", (16, 16)), entry))
    assert output.is_error
    assert "more pixels" in text(output)


@pytest.mark.parametrize(
    "data", [b"\0\0\1\0", b"\0\0\1\0\xff\xff", icon(b""), icon(b"\x89PNG"), b"\0\0\1\0\1\0" + b"\xff" * 40]
)
def test_an_icon_that_holds_nothing_is_damaged(data: bytes) -> None:
    output = look(data)
    assert output.is_error
    assert "damaged" in text(output)


def ftyp(*brands: bytes) -> bytes:
    size = 12 + 4 * len(brands)
    return struct.pack(">I", size) + b"ftyp" + brands[0] + bytes(4) + b"".join(brands[1:]) + bytes(64)


TGA = struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, 2, 2, 24, 0) + bytes(12)


@pytest.mark.parametrize(
    ("data", "name", "way"),
    [
        (ftyp(b"heic", b"mif1", b"heic"), "heic", "heif-convert"),
        (ftyp(b"mif1", b"mif1", b"heic"), "heic", "heif-convert"),
        (ftyp(b"hevc", b"msf1"), "heic", "heif-convert"),
        (ftyp(b"isom", b"isom", b"avc1"), "mp4", "ffmpeg"),
        (ftyp(b"qt  "), "mov", "ffmpeg"),
        (ftyp(b"crx ", b"isom"), "cr3", "dcraw"),
        (b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(50), "jp2", "magick"),
        (b"\xff\x4f\xff\x51" + bytes(50), "jp2", "magick"),
        (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(50), "jxl", "djxl"),
        (b"\xff\x0a" + bytes(50), "jxl", "djxl"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "svg", "read it in Bash"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- \xc3\xa9 -->\n<!DOCTYPE svg>\n<svg:svg>", "svg", "read it in Bash"),
        ("<svg>é</svg>".encode("utf-16"), "svg", "read it in Bash"),
        (b"8BPS\0\1" + bytes(50), "psd", "magick"),
        (TGA + b"TRUEVISION-XFILE.\0", "tga", "magick"),
        (b"P6\n2 2\n255\n" + bytes(12), "ppm", "magick"),
        (b"P5 2 2 255\n" + bytes(4), "pgm", "magick"),
        (b"P1\n# no pixels\n2 2\n1 0 1 0\n", "pbm", "magick"),
        (b"P7\nWIDTH 2\n", "pam", "magick"),
        (b"Pf\n2 2\n-1\n" + bytes(16), "pfm", "magick"),
        (b"icns\0\0\0\x20" + bytes(50), "icns", "magick"),
        (b"DDS |\0\0\0" + bytes(50), "dds", "magick"),
        (b"\x0a\5\1\x08" + bytes(124), "pcx", "magick"),
        (b"\0\0\2\0\1\0" + bytes(50), "cur", "magick"),
        (b"\x76\x2f\x31\x01" + bytes(50), "exr", "magick"),
        (b"#?RADIANCE\nFORMAT=x\n\n" + bytes(9), "hdr", "magick"),
        (b"gimp xcf v011\0" + bytes(50), "xcf", "xcf2png"),
        (b"qoif" + bytes(50), "qoi", "magick"),
        (bytes(4) + b"\x12\xaf" + bytes(50), "flc", "ffmpeg"),
        (b"BLP2" + bytes(50), "blp", "Pillow"),
        (b"\xd0\xcf\x11\xe0" + bytes(50), "doc", "soffice"),
        (bytes(128) + b"DICM" + bytes(50), "dicom", "dcmj2pnm"),
        (b"%PDF-1.7\n%\xe2\xe3\n", "pdf", "pdftoppm"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "eps", "gs"),
        (b"\xc5\xd0\xd3\xc6" + bytes(50), "eps", "gs"),
        (b"\x1a\x45\xdf\xa3" + bytes(50), "webm", "ffmpeg"),
        (b"RIFF\0\0\0\0AVI LIST", "avi", "ffmpeg"),
        (b"RIFF\0\0\0\0WAVEfmt ", "wav", "no sound"),
        (b"PK\3\4" + bytes(50), "zip", "unpack"),
        (b"\x1f\x8b\x08\0" + bytes(50), "gz", "zcat"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pointer", "git lfs pull"),
        (b"<!DOCTYPE html>\n<title>404</title>", "html", "a download may have returned an error"),
        (b"data:image/png;base64,iVBORw0KGgo", "base64", "base64 -d"),
        (b"iVBORw0KGgoAAAANSUhEUg==\n", "base64", "base64 -d"),
        ("Grüße, kein Bild\n".encode(), "text", "read it in Bash"),
        (b"caf\xc3\xa9 " * 700, "text", "read it in Bash"),
    ],
)
def test_what_can_not_be_shown_is_named_with_the_way_to_show_it(data: bytes, name: str, way: str) -> None:
    output = look(data, "/pictures/a")
    assert output.is_error
    assert "is not a png, jpeg, gif, webp, bmp, tiff, avif or ico image but " in text(output)
    assert name in text(output).partition(" image but ")[2].lower()
    assert way in text(output)


def test_an_old_targa_picture_is_known_by_its_ending() -> None:
    assert "Targa picture (tga)" in text(look(TGA, "/pictures/A.TGA"))
    assert "something else, or damaged" in text(look(TGA, "/pictures/a.bin"))


@pytest.mark.parametrize("data", [ftyp(b"avif", b"mif1", b"miaf"), b"II*\0\x08\0\0\0\0\0", b"MM\0+" + bytes(9)])
def test_a_picture_that_begins_rightly_but_can_not_be_read_is_damaged_or_rare(data: bytes) -> None:
    output = look(data)
    assert output.is_error
    assert "damaged" in text(output)
    assert "magick IN OUT.png" in text(output)


def test_foreign_bytes_of_every_kind_are_named_or_shown() -> None:
    chance = random.Random(5)
    starts = [
        b"\0\0\1\0\1\0",
        b"\0\0\0\x20ftypavif",
        b"\0\0\2\0",
        b"\x0a\5\1\x08",
        b"P6\n",
        b"<svg",
        b"8BPS",
        b"\xff\x0a",
    ]
    for start in starts:
        for _ in range(6):
            output = look(start + chance.randbytes(chance.randrange(400)))
            assert output.is_error or isinstance(output.content[0], Image)
            assert "traceback" not in text(output).lower()


def test_damage_in_metadata_anywhere_never_raises() -> None:
    chance = random.Random(2)
    exif = pillow.Exif()
    exif[0x0112] = 6
    options: dict[str, Any] = {"exif": exif, "icc_profile": b"profile" * 50}
    for kind in ("png", "jpeg", "webp", "tiff"):
        data = picture(kind, (20, 10), **options)
        for _ in range(30):
            broken = bytearray(data)
            for _ in range(4):
                broken[chance.randrange(min(len(broken), 600))] = chance.randrange(256)
            output = look(bytes(broken))
            assert output.is_error or isinstance(output.content[0], Image)
