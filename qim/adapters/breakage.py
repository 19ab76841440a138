"""Our own bugs where nobody waits for a result: a task that is kept, a callback of the loop. They must end the process.

asyncio tells of a task's error when it forgets the task, which of one that is kept it never does; and a callback that
raises leaves its caller without the answer it was promised. Either way the process goes on and does nothing. So they are
told here, by the loop's exception handler, and whoever runs the process ends it (services/runtime.py).
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

BROKEN: Final = "qim_broken"
"""The entry of an exception handler's context that says what broke."""


def tell(loop: asyncio.AbstractEventLoop, what: str, error: BaseException) -> None:
    """``what`` can't go on; on the loop."""
    loop.call_exception_handler({"message": f"{what} broke", "exception": error, BROKEN: what})


@contextmanager
def telling(loop: asyncio.AbstractEventLoop, what: str) -> Iterator[None]:
    """Around what a callback does: its error is told and goes no further."""
    try:
        yield
    except Exception as error:
        tell(loop, what, error)


def begin(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None], what: str
) -> asyncio.Task[None]:
    """A task whose error is told the moment it has one; cancelling it is no error."""
    task = loop.create_task(work, name=what)

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            tell(loop, what, error)

    task.add_done_callback(ended)
    return task
