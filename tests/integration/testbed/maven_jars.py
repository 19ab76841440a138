"""Jars of a Java server, fetched once by Maven from the pom.xml beside its test bed module."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
TESTBED: Final = ROOT / ".testbed"
FETCH_SECONDS_MAX: Final = 900


class JarsMissing(Exception):
    """Java, Maven or the jars can't be had; the message holds the command that gets them, or Maven's own words."""


def jars_of(server: str) -> Path:
    """The directory with all jars of ``server``; another worker that fetches them is waited for. Raises JarsMissing."""
    for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            raise JarsMissing(f"no {program} on PATH; `apt-get install -y {package}` brings it")
    directory = TESTBED / server
    directory.mkdir(parents=True, exist_ok=True)
    jars = directory / "jars"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.exists():
            _fetch(Path(__file__).parent / server / "pom.xml", directory, jars)
    return jars


def _fetch(pom: Path, directory: Path, jars: Path) -> None:
    """Into a directory that gets its name only when it is whole."""
    partial = directory / f"jars.{os.getpid()}"
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={partial}", f"-DbuildDirectory={directory}/target"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
    )
    if ended.returncode != 0 or not any(partial.glob("*.jar")):
        shutil.rmtree(partial, ignore_errors=True)
        raise JarsMissing(f"{' '.join(command)}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    partial.rename(jars)
