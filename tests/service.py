"""One child process of the tests: it keeps its port and folder over a kill, and never outlives its starter.

It has a session of its own (Ctrl-C reaches pytest only) and a watchdog that kills it when the process that started it is
gone, however that went. The watchdog waits on a pipe: PR_SET_PDEATHSIG fires when the starting *thread* ends, which is
too early.
"""

from __future__ import annotations

import abc
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from kafka_jars import MissingRequirement

HOST = "127.0.0.1"


def free_port() -> int:
    """A port below the ephemeral range: nothing takes it while its service is down between two starts.

    (A client that keeps connecting to a closed port inside the range can also end up connected to itself.)
    """
    for _ in range(500):
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as s:
            try:
                s.bind((HOST, port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free loopback port between 15000 and 32000")


class Service(abc.ABC):
    """One child process in a folder. Subclasses give its command and say when it is ready."""

    name: ClassVar[str]
    ready_seconds: ClassVar[float] = 30.0

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def after_us(self) -> str:
        """Shell: how the watchdog ends the service, $0 = its process group."""
        return 'kill -9 "-$0"'

    @abc.abstractmethod
    def command(self) -> Sequence[str]: ...

    @abc.abstractmethod
    def ready(self) -> bool: ...

    @abc.abstractmethod
    def prepare(self) -> None:
        """Bring what must be there before the process starts. Raises MissingRequirement."""

    def start(self) -> None:
        """Start and wait until it answers. Raises MissingRequirement, or RuntimeError with the end of its log."""
        assert self.process is None, f"{self.name} is running already"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.prepare()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        self._watchdog = subprocess.Popen(
            ["sh", "-c", f"read _; {self.after_us}", str(self.process.pid)], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            wait_until(self._alive_and_ready, self.ready_seconds, f"{self.name} at {self.address}")
        except BaseException as e:
            self.kill()
            raise RuntimeError(f"{self.name} did not start: {e}; end of its log: {self._log_end()}") from None

    def stop(self, timeout: float = 20.0) -> None:
        """SIGTERM, and SIGKILL after `timeout` seconds."""
        if self.process is None:
            return
        self.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: no goodbye to anybody."""
        if self.process is None:
            return
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.process = None
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None

    def restart(self, hard: bool = False) -> None:
        """Down and up again on the same port and folder; `hard` = SIGKILL."""
        self.kill() if hard else self.stop()
        self.start()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def _alive_and_ready(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"it ended with status {self.process and self.process.returncode}")
        return self.ready()

    def _log_end(self) -> str:
        return " | ".join(self.log.read_text("utf-8", "replace").splitlines()[-8:])


def hear_ctrl_c() -> None:
    """For preexec_fn: a suite that a script runs in the background has SIGINT ignored, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def need(program: str, package: str, instead: str = "") -> None:
    if shutil.which(program) is None:
        raise MissingRequirement(f"{program} is missing: `apt-get install -y {package}`{instead}")


def exchange(port: int, request: bytes, size: int) -> bytes:
    """The first `size` bytes of the answer; fewer when nobody answers within 2 s."""
    answer = b""
    try:
        with socket.create_connection((HOST, port), 2) as s:
            s.settimeout(2)
            s.sendall(request)
            while len(answer) < size and (more := s.recv(size - len(answer))):
                answer += more
    except OSError:
        pass
    return answer


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll every 50 ms. Raises TimeoutError naming `what`."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)
