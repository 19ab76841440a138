"""A frame as a later version might write it: this one's header, and a payload nobody here can read (decision 0031)."""

from typing import Final

from qim.core.contract.entities import FORMAT_VERSION
from qim.core.contract.logvalue import HEADER_BYTES, KIND_RECORD

LATER_VERSION: Final = FORMAT_VERSION + 1
NEWER: Final = (
    bytes((LATER_VERSION, KIND_RECORD)).ljust(HEADER_BYTES, b"\0") + b"\xc1whatever comes"
)
