"""Say what is wrong with one mount: a code, which a page in docs explains, and a sentence with the fix."""

from typing import Literal

import msgspec

FaultCode = Literal[
    "CONFIG_NAME",
    "CONFIG_UNKNOWN_KEY",
    "CONFIG_NO_SERVER",
    "CONFIG_TWO_SERVERS",
    "CONFIG_VALUE",
    "CONFIG_VARIABLE_NOT_SET",
    "CONFIG_PLACEHOLDER",
]


class MountFault(msgspec.Struct, frozen=True):
    """Why a mount is not served."""

    name: str
    code: str
    text: str


class MountValueError(ValueError):
    """A value of a mount is refused; the message says what it must be, and repeats no secret."""

    def __init__(self, text: str, code: FaultCode = "CONFIG_VALUE") -> None:
        super().__init__(text)
        self.code: FaultCode = code
