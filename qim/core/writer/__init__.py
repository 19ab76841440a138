"""The Writer machine (pipeline.md §1): commits, group membership, and reads over the hot store."""

from qim.core.writer.machine import Writer
from qim.core.writer.vocabulary import WriterConfig, WriterEffect, WriterEvent

__all__ = ["Writer", "WriterConfig", "WriterEffect", "WriterEvent"]
