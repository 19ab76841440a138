"""The wire can't drift unseen: encoded frames equal the frozen ones, and the frozen ones decode to the same frames."""

from qim.core.contract.frames import FRAMES, decode_frame
from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder
from tests.core.contract.golden import GOLDEN_FILE, REQUEST, SAMPLES, golden_text


def frozen() -> dict[str, bytes]:
    lines = GOLDEN_FILE.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" ") for line in lines if not line.startswith("#")]
    return {name: bytes.fromhex(digits) for name, digits in pairs}


def test_encoding_is_the_frozen_one() -> None:
    assert golden_text() == GOLDEN_FILE.read_text(encoding="utf-8")


def test_the_frozen_bytes_are_read_as_the_same_frames() -> None:
    for name, data in frozen().items():
        (raw,) = FrameDecoder(FRAME_BYTES_MAX).feed(data)
        assert raw.request == REQUEST
        assert decode_frame(raw) == SAMPLES[name]


def test_every_frame_is_frozen() -> None:
    names = {name.removesuffix(".full") for name in frozen() if name.endswith(".full")}
    assert names == {kind.NAME for kind in FRAMES}
