"""Shared places and services of the test suite.

`kafka` and `redis_url` are real servers, started once a run; SPINF_TEST_KAFKA=HOST:PORT and
SPINF_TEST_REDIS=redis://HOST:PORT/DB use others instead. What is missing is a failure that names its command.
"""

from __future__ import annotations

import importlib.metadata as md
import itertools
import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import kafka_io
import pytest
import services

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE_PACK = ROOT / "tests" / "corpus" / "example-pack.json"

# The interpreter and opcode checks need their own pair of Triton and numpy (DECISIONS 23): `make test-kernels`. There the
# interpreter is switched on before anything imports Triton; everywhere else those files are not collected.
collect_ignore = ["kernels/test_interpreted.py", "kernels/test_interpreted_steps.py", "kernels/test_compiled.py"]
if md.version("triton") == "3.6.0" and tuple(map(int, md.version("numpy").split(".")[:2])) < (2, 4):
    os.environ["TRITON_INTERPRET"] = "1"
    collect_ignore = ["kernels/test_executor.py"]  # runs with the suite

TopicMaker = Callable[..., str]


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    """A command that runs in this process sets up logs on the stderr of its test, which is closed after it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _running(service: services.Service) -> Iterator[services.Service]:
    try:
        service.start()
    except services.MissingRequirement as e:
        pytest.fail(str(e), pytrace=False)
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The address of a broker that forgets everything at the end of the run."""
    given = os.environ.get("SPINF_TEST_KAFKA")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="spinf-kafka-") as folder:
        for broker in _running(services.Kafka(Path(folder))):
            yield broker.address


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    given = os.environ.get("SPINF_TEST_REDIS")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="spinf-redis-") as folder:
        for server in _running(services.Redis(Path(folder))):
            assert isinstance(server, services.Redis)
            yield server.url


@pytest.fixture
def topics(kafka: str) -> TopicMaker:
    """`topics(4)` makes a topic of 4 partitions under a name that nobody else has; `topics(1, name="dlq")` adds a word."""
    run, count = uuid.uuid4().hex[:8], itertools.count()

    def make(partitions: int = 1, name: str = "t", **settings: str) -> str:
        topic = f"{name}-{run}-{next(count)}"
        kafka_io.run(kafka_io.create(kafka, {topic: partitions}, {k.replace("_", "."): v for k, v in settings.items()}))
        return topic

    return make
