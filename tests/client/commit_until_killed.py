"""Commits to a device's store until it is killed; writes a line for each order that was answered.

Run as a script: PATH FIRST. Batch n holds three messages, settles row n and is the cursor n.
"""

import sys
from itertools import count
from pathlib import Path

from qim.client.local_store import LocalStore
from qim.core.ports.local_store import SaveBatch, SavePending
from tests.client.local_rows import coordinates, message, pending


def main(path: Path, first: int) -> None:
    store = LocalStore(path)
    for number in count(first):
        store.execute([SavePending(op=1, row=pending(number))])
        sys.stdout.write(f"pending {number}\n")
        batch = SaveBatch(
            op=2,
            messages=tuple(message(number * 3 + part) for part in range(3)),
            cursor=b"%d" % number,
            covered_through=number,
            moves_anchors=True,
            settled=(coordinates(number),),
        )
        store.execute([batch])
        sys.stdout.write(f"batch {number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
