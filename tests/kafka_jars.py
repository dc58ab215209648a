"""Apache Kafka's jars from Maven Central, fetched once into a cache folder outside the tree."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path

KAFKA_VERSION = "4.4.0"

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>spinf-stream</groupId> <artifactId>test-kafka</artifactId> <version>1</version> <packaging>pom</packaging>
  <dependencies>
    <dependency> <groupId>org.apache.kafka</groupId> <artifactId>kafka_2.13</artifactId> <version>{KAFKA_VERSION}</version> </dependency>
    <dependency> <groupId>org.slf4j</groupId> <artifactId>slf4j-simple</artifactId> <version>1.7.36</version> </dependency>
  </dependencies>
</project>
"""


class MissingRequirement(RuntimeError):
    """One line: what is missing and the command that brings it. A failure, never a skip."""


def cache_folder() -> Path:
    """SPINF_TEST_CACHE, else $XDG_CACHE_HOME/spinf-stream-tests, else ~/.cache/spinf-stream-tests."""
    base = os.environ.get("SPINF_TEST_CACHE")
    xdg = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) if base else Path(xdg) / "spinf-stream-tests"


def java17() -> bool:
    """A Java that can run a Kafka 4 broker."""
    if shutil.which("java") is None:
        return False
    said = subprocess.run(["java", "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stderr
    version = re.search(r'version "(\d+)', said)
    return version is not None and int(version[1]) >= 17


def docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "version"], stdin=subprocess.DEVNULL, capture_output=True)
    return asked.returncode == 0


def kafka_jars() -> Path:
    """The folder of jars. Raises MissingRequirement when there is no Java, or no Maven and nothing cached."""
    fix = "`apt-get install -y default-jre-headless maven` (or set SPINF_TEST_KAFKA=HOST:PORT, or run a Docker engine)"
    if not java17():
        raise MissingRequirement(f"Java 17 or newer is missing: {fix}")
    folder = cache_folder() / f"kafka-{KAFKA_VERSION}"
    if folder.is_dir():
        return folder
    if shutil.which("mvn") is None:
        raise MissingRequirement(f"Maven is missing: {fix}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test sessions on one machine
        if not folder.is_dir():
            _fetch(folder)
    return folder


def broker_jars() -> Path | None:
    """As kafka_jars, for a broker here; None where that cannot be and a Docker engine has to run it."""
    try:
        return kafka_jars()
    except MissingRequirement:
        if docker_answers():
            return None
        raise


def _fetch(folder: Path) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    pom = folder.parent / "pom.xml"
    pom.write_text(POM, "utf-8")
    plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    fetch = ["mvn", "-q", "-B", "-f", str(pom), plugin, "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    done = subprocess.run(fetch, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode or not list(partial.glob("kafka_2.13-*.jar")):
        raise MissingRequirement(f"Kafka {KAFKA_VERSION} could not be fetched with Maven: {(done.stdout + done.stderr).strip()[-400:]}")
    partial.rename(folder)  # whole or not at all
