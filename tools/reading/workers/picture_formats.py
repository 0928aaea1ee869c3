"""Name the format of a file that is no picture ReadImage can show, and say how to convert it.

A name has the usual ending of its files, so that a reader recognizes it.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

HEAD = 4_096  # bytes in which a format shows
TGA_FOOTER = b"TRUEVISION-XFILE."  # ends a Targa file, version 2
LEAST_TGA = 18  # bytes of its header

MAGICK = "convert it in Bash, such as: magick IN OUT.png"
FRAME = "take a frame in Bash, such as: ffmpeg -i IN -frames:v 1 OUT.png"
SOUND = "ReadImage shows no sound"
ARCHIVE = "unpack it in Bash first"
RAW = "convert it in Bash, such as: dcraw -c -w IN > OUT.ppm, then magick OUT.ppm OUT.png"
HEIF = "convert it in Bash, such as: heif-convert IN OUT.png, or magick IN OUT.png"
OFFICE = "render it in Bash, such as: soffice --headless --convert-to pdf IN"
POSTSCRIPT = "render it in Bash, such as: gs -q -sDEVICE=png16m -r100 -o OUT.png IN"


class Signature(NamedTuple):
    """The bytes at an offset by which a format is recognized, its name, and what to do with it."""

    offset: int
    start: bytes
    name: str
    advice: str


DECODED = (  # what ReadImage shows: a file that begins so and can't be read is damaged
    (0, b"\x89PNG\r\n\x1a\n"),
    (0, b"\xff\xd8\xff"),
    (0, b"GIF87a"),
    (0, b"GIF89a"),
    (0, b"II*\0"),
    (0, b"MM\0*"),
    (0, b"II+\0"),
    (0, b"MM\0+"),
    (0, b"\0\0\1\0"),
    (8, b"WEBP"),
)

SIGNATURES = (
    Signature(0, b"8BPS", "a Photoshop picture (psd)", "convert it in Bash, such as: magick 'IN[0]' OUT.png"),
    Signature(0, b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000 picture (jp2)", MAGICK),
    Signature(0, b"\xff\x4f\xff\x51", "a JPEG 2000 picture (j2k, jp2)", MAGICK),
    Signature(
        0, b"\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL picture (jxl)", "convert it in Bash, such as: djxl IN OUT.png"
    ),
    Signature(0, b"\xff\x0a", "a JPEG XL picture (jxl)", "convert it in Bash, such as: djxl IN OUT.png"),
    Signature(0, b"II\xbc\x01", "a JPEG XR picture (jxr)", "convert it in Bash, such as: JxrDecApp -i IN -o OUT.tif"),
    Signature(0, b"icns", "an Apple icon (icns)", "convert it in Bash, such as: icns2png -x IN, or magick IN OUT.png"),
    Signature(0, b"DDS ", "a DirectDraw texture (dds)", MAGICK),
    Signature(8, b"ACON", "an animated Windows cursor (ani)", MAGICK),
    Signature(0, b"\x76\x2f\x31\x01", "an OpenEXR picture (exr)", MAGICK),
    Signature(0, b"#?R", "a Radiance picture (hdr)", MAGICK),
    Signature(0, b"gimp xcf", "a GIMP picture (xcf)", "convert it in Bash, such as: xcf2png IN -o OUT.png"),
    Signature(0, b"qoif", "a QOI picture (qoi)", MAGICK),
    Signature(0, b"FLIF", "a FLIF picture (flif)", "convert it in Bash, such as: flif -d IN OUT.png"),
    Signature(0, b"BPG\xfb", "a BPG picture (bpg)", "convert it in Bash, such as: bpgdec -o OUT.png IN"),
    Signature(0, b"\x01\xda", "an SGI picture (sgi, rgb)", MAGICK),
    Signature(0, b"\x59\xa6\x6a\x95", "a Sun raster picture (ras)", MAGICK),
    Signature(0, b"SIMPLE  =", "a FITS picture (fits)", MAGICK),
    Signature(0, b"\x89HDF", "an HDF5 file (h5)", "read it in Bash, such as Python with h5py"),
    Signature(0, b"\x93NUMPY", "a NumPy array (npy)", "read it in Bash, such as Python with numpy"),
    Signature(128, b"DICM", "a DICOM picture (dcm)", "convert it in Bash, such as: dcmj2pnm +on IN OUT.png"),
    Signature(0, b"AT&TFORM", "a DjVu document (djvu)", "render it in Bash, such as: ddjvu -format=tiff IN OUT.tif"),
    Signature(0, b"\xc5\xd0\xd3\xc6", "a PostScript picture (eps)", POSTSCRIPT),
    Signature(40, b" EMF", "a Windows drawing (emf)", "convert it in Bash, such as: inkscape IN -o OUT.png"),
    Signature(0, b"\xd7\xcd\xc6\x9a", "a Windows drawing (wmf)", "convert it in Bash, such as: inkscape IN -o OUT.png"),
    Signature(4, b"\x11\xaf", "an Autodesk animation (fli)", FRAME),
    Signature(4, b"\x12\xaf", "an Autodesk animation (flc)", FRAME),
    Signature(0, b"BLP", "a Blizzard texture (blp)", "convert it in Bash, such as Python with Pillow"),
    Signature(0, b"FTEX", "a texture (ftc, ftu)", "convert it in Bash, such as Python with Pillow"),
    Signature(0, b"\xb1\x68\xde\x3a", "several PCX pictures (dcx)", MAGICK),
    Signature(20, b"GIMP", "a GIMP brush (gbr)", "convert it in Bash, such as Python with Pillow"),
    Signature(0, b"Image type:", "an IFUNC picture (im)", "convert it in Bash, such as Python with Pillow"),
    Signature(0, b"DanM", "a Microsoft Paint picture (msp)", "convert it in Bash, such as Python with Pillow"),
    Signature(0, b"LinS", "a Microsoft Paint picture (msp)", "convert it in Bash, such as Python with Pillow"),
    Signature(2048, b"PCD_", "a Photo CD picture (pcd)", MAGICK),
    Signature(0, b"id=ImageMagick", "an ImageMagick picture (miff)", MAGICK),
    Signature(0, b"GRIB", "a GRIB file of weather data (grb)", "read it in Bash, such as: wgrib2 IN"),
    Signature(0, b"FUJIFILMCCD-RAW", "a camera's raw picture (raf)", RAW),
    Signature(0, b"IIR", "a camera's raw picture (orf)", RAW),
    Signature(0, b"IIU\0", "a camera's raw picture (rw2)", RAW),
    Signature(0, b"%PDF", "a PDF (pdf)", "render it in Bash, such as: pdftoppm -r 100 -png IN OUT"),
    Signature(0, b"\x1a\x45\xdf\xa3", "a video (mkv, webm)", FRAME),
    Signature(8, b"AVI ", "a video (avi)", FRAME),
    Signature(0, b"FLV\1", "a video (flv)", FRAME),
    Signature(0, b"\0\0\1\xba", "a video (mpg)", FRAME),
    Signature(0, b"\0\0\1\xb3", "a video (mpg)", FRAME),
    Signature(0, b"\x30\x26\xb2\x75", "a video (wmv)", FRAME),
    Signature(4, b"moov", "a video (mov)", FRAME),
    Signature(4, b"mdat", "a video (mov)", FRAME),
    Signature(0, b"OggS", "sound or a video (ogg)", FRAME),
    Signature(8, b"WAVE", "sound (wav)", SOUND),
    Signature(0, b"ID3", "sound (mp3)", SOUND),
    Signature(0, b"fLaC", "sound (flac)", SOUND),
    Signature(0, b"\xd0\xcf\x11\xe0", "an old Office document (doc, xls, ppt)", OFFICE),
    Signature(0, b"PK\3\4", "a zip archive, or a document that is one (zip)", ARCHIVE),
    Signature(0, b"\x1f\x8b", "compressed by gzip (gz, svgz)", "unpack it in Bash, such as: zcat IN > OUT"),
    Signature(0, b"BZh", "compressed by bzip2 (bz2)", ARCHIVE),
    Signature(0, b"\xfd7zXZ\0", "compressed by xz (xz)", ARCHIVE),
    Signature(0, b"\x28\xb5\x2f\xfd", "compressed by zstd (zst)", ARCHIVE),
    Signature(0, b"7z\xbc\xaf", "a 7-Zip archive (7z)", ARCHIVE),
    Signature(0, b"Rar!", "an RAR archive (rar)", ARCHIVE),
    Signature(257, b"ustar", "a tar archive (tar)", ARCHIVE),
    Signature(0, b"\x7fELF", "a program", "ReadImage shows no programs"),
    Signature(0, b"SQLite format 3", "an SQLite database", "read it in Bash, such as: sqlite3 IN .schema"),
    Signature(0, b"\0\x01\0\0", "a font (ttf)", "ReadImage shows no fonts"),
    Signature(0, b"OTTO", "a font (otf)", "ReadImage shows no fonts"),
    Signature(0, b"wOF", "a font (woff)", "ReadImage shows no fonts"),
)

BRANDS = {  # of ISO media files (ISO 14496-12): the first letters of a brand → name and advice; the first that fits
    b"avi": ("an AVIF picture (avif)", "convert it in Bash, such as: avifdec IN OUT.png"),
    b"hei": ("an HEIC picture (heic, heif)", HEIF),
    b"hev": ("an HEIC picture (heic, heif)", HEIF),
    b"mif": ("an HEIF picture (heif, heic)", HEIF),
    b"msf": ("an HEIF picture (heif, heic)", HEIF),
    b"crx": ("a camera's raw picture (cr3)", RAW),
    b"M4A": ("sound (m4a)", SOUND),
    b"qt ": ("a video (mov)", FRAME),
    b"": ("a video (mp4)", FRAME),
}

TEXTS = (  # a pattern at a text's beginning, its name, and what to do with it
    (r"version https://git-lfs", "a Git LFS pointer", "git lfs pull in Bash fetches the file itself"),
    (
        r"data:image/|iVBORw0KGgo|/9j/|R0lGOD|UklGR",
        "a picture in base64",
        "decode it in Bash, such as: base64 -d IN > OUT",
    ),
    (r"%!PS|%!", "a PostScript drawing (ps, eps)", POSTSCRIPT),
    (r"/\* XPM", "an XPM picture (xpm)", MAGICK),
    (r"#define \w+_width", "an XBM picture (xbm)", MAGICK),
    (r"P[14]\s", "a Netpbm picture (pbm, pnm)", MAGICK),
    (r"P[25]\s", "a Netpbm picture (pgm, pnm)", MAGICK),
    (r"P[36]\s", "a Netpbm picture (ppm, pnm)", MAGICK),
    (r"P7\s", "a Netpbm picture (pam, pnm)", MAGICK),
    (r"P[fF]\s", "a Netpbm picture (pfm, pnm)", MAGICK),
)
SVG = ("an SVG drawing (svg)", "read it in Bash, or render it: rsvg-convert IN -o OUT.png")
HTML = ("a web page (html)", "read it in Bash: a download may have returned an error")
ANY_TEXT = ("", "read it in Bash")


def is_decoded(body: bytes, formats: Sequence[str]) -> bool:
    """Return whether the file begins like a picture that ReadImage shows. `formats` are those of this Pillow."""
    if _find_brand(body[:HEAD]) == BRANDS[b"avi"]:
        return "AVIF" in formats
    is_bitmap = body[:2] == b"BM" and body[6:10] == bytes(4)
    return is_bitmap or any(body.startswith(start, offset) for offset, start in DECODED)


def describe_format(body: bytes, path: str) -> str:
    """Return what the file is, and what to do with it. An empty name is left out."""
    name, advice = _find_format(body, path)
    return f"{name}; {advice}" if advice else name


def _find_format(body: bytes, path: str) -> tuple[str, str]:
    head = body[:HEAD]
    brand = _find_brand(head)
    if brand is not None:
        return brand
    for pattern, name, advice in TEXTS[-5:]:  # Netpbm: text, and then perhaps bytes
        if re.match(pattern.encode(), head):
            return name, advice
    for signature in SIGNATURES:
        if head.startswith(signature.start, signature.offset):
            return signature.name, signature.advice
    text = _decode_text(head)
    if text is not None:
        name, advice = _find_text(text)
        return f"text, {name}" if name else "text", advice
    if head[:4] == b"\0\0\2\0" and any(head[4:6]):  # without a count of pictures it may be Targa
        return "a Windows cursor (cur)", "convert it in Bash, such as: magick 'ico:IN[0]' OUT.png"
    if _is_pcx(head):
        return "a PCX picture (pcx)", MAGICK
    if _is_targa(body, path):
        return "a Targa picture (tga)", MAGICK
    return "something else, or damaged", ""


def _find_brand(head: bytes) -> tuple[str, str] | None:
    if head[4:8] != b"ftyp":
        return None
    brands = [head[8:12], *(head[place : place + 4] for place in range(16, min(len(head), head[3]), 4))]
    return next(BRANDS[start] for start in BRANDS if any(brand.startswith(start) for brand in brands))


def _decode_text(head: bytes) -> str | None:
    """Return the beginning of a text, or None if it is none."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return head.decode("utf-16", "replace")
    if b"\0" in head:
        return None
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        is_cut = error.start > len(head) - 4 and len(head) == HEAD
        return head[: error.start].decode() if is_cut else None


def _find_text(text: str) -> tuple[str, str]:
    text = text.lstrip("\ufeff \t\r\n")
    for pattern, name, advice in TEXTS:
        if re.match(pattern, text):
            return name, advice
    if re.search(r"<(?:\w+:)?svg[\s>]", text):
        return SVG
    if re.match(r"(?is)(?:<!--.*?-->|<\?xml[^>]*>|\s)*<(?:!doctype html|html|head|body)\b", text):
        return HTML
    return ANY_TEXT


def _is_pcx(head: bytes) -> bool:
    return head[:1] == b"\x0a" and head[1:2] in b"\0\2\3\4\5" and head[2:3] == b"\1" and head[3:4] in b"\1\2\4\10"


def _is_targa(body: bytes, path: str) -> bool:
    """Return whether the file is a Targa picture. Only version 2 has a signature; the older one has its ending."""
    if TGA_FOOTER in body[-26:]:
        return True
    is_plausible = len(body) > LEAST_TGA and body[1] < 2 and body[2] in (1, 2, 3, 9, 10, 11)
    has_depth = is_plausible and body[16] in (8, 15, 16, 24, 32)  # bits of a pixel
    return has_depth and path.lower().endswith((".tga", ".icb", ".vda", ".vst"))
