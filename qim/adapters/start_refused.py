"""What a start-up check says when it refuses: what was found, what is needed, and the command that puts it right."""


class StartRefused(Exception):
    """The set-up would lose or corrupt something, so nothing is written and nothing listens.

    ``code``: a stable word for scripts and tests, `kafka_retention_short`; ``command``: what an operator can paste.
    """

    def __init__(self, code: str, what: str, *, got: str, expected: str, command: str) -> None:
        super().__init__(
            f"{what} is {got}, expected {expected}; to put it right: {command} [{code}]"
        )
        self.code = code
        self.what = what
        self.got = got
        self.expected = expected
        self.command = command
