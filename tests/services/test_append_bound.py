"""What a writer appends at once, as a deployment has it, is what a repair of its outbox looks for."""

from typing import Any

import pytest

from qim.core.contract.params import Parameters
from qim.core.mending.unarchived import APPEND_MOST
from qim.services import hosting
from qim.services.hosting import Deployment, machine_of
from qim.services.roles import ServiceRole


def test_no_writer_appends_more_at_once_than_a_repair_looks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More of it would be in no archive, and stand where the archiver has passed."""
    built: list[Any] = []
    monkeypatch.setattr(hosting, "Writer", lambda config, choose: built.append(config))
    machine_of(ServiceRole.WRITER, Deployment(parameters=Parameters()))
    (config,) = built
    assert config.append_records_max <= APPEND_MOST
