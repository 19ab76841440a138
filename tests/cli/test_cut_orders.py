"""An order whose answer is cut: it may have been carried out, so it is told and never given again."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qim.adapters.embedded.data_directory import DataDirectory
from qim.cli.data_files import order
from qim.cli.main import main

HALF = b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"found": ['
ANSWERS = pytest.mark.parametrize(
    "answer",
    [b"", HALF, HALF.replace(b"1.1", b"1.0").replace(b"Content-Length: 100\r\n", b"")],
    ids=["none", "half of its length", "half of a document"],
)


class CutOff:
    """A server that reads an order whole, answers so much and hangs up; ``orders``: how many it read."""

    def __init__(self, answer: bytes) -> None:
        self.orders = 0
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._serving = threading.Thread(target=self._serve)
        self._serving.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection:
                head, _, body = connection.recv(65_536).partition(b"\r\n\r\n")
                if not head:
                    return
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                while len(body) < length:
                    body += connection.recv(65_536)
                self.orders += 1
                connection.sendall(self._answer)

    def close(self) -> None:
        socket.create_connection(self._listening.getsockname()).close()
        self._serving.join()
        self._listening.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    DataDirectory(folder).registry_database.touch()
    (folder / "operator.key").write_text("7f" * 32)
    return folder


@pytest.fixture
def cut_off(data: Path, answer: bytes) -> Iterator[CutOff]:
    server = CutOff(answer)
    told = {"tcp": server.address, "metrics": server.address, "pid": os.getpid()}
    (data / "server.json").write_text(json.dumps(told))
    yield server
    server.close()


@ANSWERS
def test_what_mends_is_ordered_once(
    data: Path, cut_off: CutOff, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["shard", "bump", "--shard", "0", "--force", "--apply", "--data", str(data)])
    assert (status, cut_off.orders) == (3, 1)
    said = capsys.readouterr().err
    assert "the order may have been carried out: a dry run says what is left" in said
    assert cut_off.address in said


@ANSWERS
def test_a_cut_is_told_apart_from_nobody_there(data: Path, cut_off: CutOff) -> None:
    with pytest.raises(ConnectionError) as cut:
        order(data, "/mend", b"{}", 30.0)
    assert not isinstance(cut.value, ConnectionRefusedError)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
    told = {"tcp": nobody, "metrics": nobody, "pid": os.getpid()}
    (data / "server.json").write_text(json.dumps(told))
    with pytest.raises(ConnectionRefusedError):
        order(data, "/mend", b"{}", 30.0)
