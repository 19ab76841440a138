"""`qim chat`: write and see what comes, in one terminal."""

from qim.cli.chat.command import add_parser

__all__ = ["add_parser"]
