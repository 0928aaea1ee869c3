"""Generated pictures, and calls of ReadImage on them; a fake workspace returns the bytes."""

import asyncio
import io
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image as pillow

from tests.tools.tool_calls import call, page_reader
from toolgate.tools.api.content import Image, Output
from toolgate.tools.api.context.services import Settings
from toolgate.tools.api.errors import ToolError
from toolgate.tools.builtin.images import read_image
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader
from toolgate.tools.workspace.files.open_file import LocalFile


class OneFileWorkspace:
    """A workspace with one file in it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[Any] = []

    async def open_file(self, path: str, limit: int, *, anywhere: bool) -> LocalFile:
        self.asked.append((path, limit, anywhere))
        if not path.startswith("/"):
            raise ToolError(f"{path} is not an absolute path")
        return LocalFile(io.BytesIO(self.data), path, len(self.data))


class SharedReader:
    """One event loop and one worker for all tests: starting one for each would take longer than they do."""

    runner: asyncio.Runner
    reader: LocalPageReader


@pytest.fixture(scope="module", autouse=True)
def shared_reader() -> Iterator[None]:
    with asyncio.Runner() as SharedReader.runner:
        SharedReader.reader = page_reader()
        yield
        SharedReader.runner.run(SharedReader.reader.close())


def look(data: bytes, path: str = "/pictures/a.png", **settings: Any) -> Output:
    return asked(OneFileWorkspace(data), path, **settings)


def asked(workspace: OneFileWorkspace, path: str, **settings: Any) -> Output:
    work = call(
        read_image, {"file_path": path}, workspace=workspace, reader=SharedReader.reader, settings=Settings(**settings)
    )
    return SharedReader.runner.run(work)


def picture(kind: str, size: tuple[int, int] = (60, 40), mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    pillow.linear_gradient("L").resize(size).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def noise(kind: str, size: tuple[int, int], **options: Any) -> bytes:
    buffer = io.BytesIO()
    pixels = random.Random(7).randbytes(size[0] * size[1] * 3)
    pillow.frombytes("RGB", size, pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def sent(output: Output) -> pillow.Image:
    block = output.content[0]
    assert isinstance(block, Image)
    with warnings.catch_warnings(action="ignore"):  # about metadata
        shown = pillow.open(io.BytesIO(block.data))
        shown.load()
    assert block.mime_type == f"image/{output.structured['format']}"
    assert shown.format is not None
    assert shown.format.lower() == output.structured["format"]
    assert (shown.width, shown.height) == (output.structured["width"], output.structured["height"])
    assert len(block.data) == output.structured["bytes"]
    return shown


def animation(kind: str, size: tuple[int, int]) -> bytes:
    frames = [pillow.new("RGB", size, colour) for colour in ("red", "green", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, kind, save_all=True, append_images=frames[1:])
    return buffer.getvalue()
