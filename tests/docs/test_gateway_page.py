"""The page about mounted servers names each key and each code, and no other."""

import re
import typing

from tests.clients.raw_client import ROOT
from toolgate.server.features.mounts.config.faults import FaultCode
from toolgate.server.features.mounts.config.table import READERS
from toolgate.server.features.mounts.upstream.errors import CODES

PAGE = ROOT / "docs/gateway.md"


def test_each_code_of_a_mount_is_explained() -> None:
    rows = re.findall(r"^\| ((?:`[A-Z_]+`(?:, )?)+) \|", PAGE.read_text(), re.MULTILINE)
    named = {code for row in rows for code in re.findall(r"`([A-Z_]+)`", row)}
    assert named == {*CODES, *typing.get_args(FaultCode)}


def test_each_key_of_a_mount_is_explained() -> None:
    text = PAGE.read_text()
    assert {key for key in READERS if f"`{key}`" not in text and f"`{key} =" not in text} == set()
