"""The one secret of a simulated cluster: it signs tokens and cursors, and lets a fault forge rightly signed ones."""

from typing import Final

SECRET: Final = b"one secret of a simulated cluster"
