"""ReadImage: send a picture from a file, scaled to fit clients' limits.

The workspace opens the file and checks the path; a worker decodes it (tools/reading/pages, and pictures.py of
tools/reading/workers).
"""

from typing import Annotated

import msgspec

from toolgate.tools.api.content import Image, Output, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.tool import tool
from toolgate.tools.reading.pages.page_reader import PageReader, PictureRequest
from toolgate.tools.workspace.workspace import Workspace

QUEUE_SHARE = 0.8  # share of a call's hold for waiting; the rest is for the picture


class ImageInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The picture as sent: `bytes` before base64, `scaled` if it was made smaller. The picture itself is a block
    alone."""

    format: str
    width: int
    height: int
    bytes: int
    scaled: bool
    note: str | None = None  # how it was changed, or what it is a part of


@tool(
    name="ReadImage",
    title="Look at an image",
    read_only=True,
    open_world=False,
    output=ImageInfo,
    scope="tools:read",
    lean=True,
)
async def read_image(file_path: Annotated[str, "absolute path"], ctx: Context) -> Output:
    """Look at an image file: png, jpeg, gif, webp, bmp, tiff, avif or ico, recognized by its content.

    Returns the image, upright, and its format, size and bytes. One too large for the client is scaled down, and the
    text says so; of a too large animation the first frame is shown.
    """
    settings, pixels = ctx.settings, ctx.settings.image_pixels
    limit, patience = settings.image_bytes // 4 * 3, settings.hold * QUEUE_SHARE
    request = PictureRequest(ctx.principal, file_path, limit, pixels, settings.any_file, patience)
    picture = await ctx.service(PageReader).fit_picture(request, ctx.service(Workspace))
    size = (picture.width, picture.height, len(picture.data))
    shape = ImageInfo(picture.format, *size, picture.is_scaled, picture.note or None)
    text = f"{file_path}: {shape.format}, {shape.width} × {shape.height}, {shape.bytes:,} bytes"
    if picture.note:
        text += f" ({picture.note})"
    return Output([Image(picture.data, f"image/{shape.format}"), Text(text)], shape)
