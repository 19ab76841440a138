"""`qim smoke`: named end-to-end checks against a running server, each an assertion."""

from qim.cli.smoke.command import add_parser

__all__ = ["add_parser"]
