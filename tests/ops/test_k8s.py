"""The Kubernetes manifests agree with the settings' defaults, with compose and with each other."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ops_files import COMPOSE
from ops_files import services as compose_services

from spinf_stream.config import PREFIX, ConfigError, Settings, load

DEPLOYMENT, BUDGET = yaml.safe_load_all((COMPOSE / "k8s" / "worker.yaml").read_text("utf-8"))
SCALED: dict[str, Any] = yaml.safe_load((COMPOSE / "k8s" / "scaledobject.yaml").read_text("utf-8"))
POD = DEPLOYMENT["spec"]["template"]["spec"]
WORKER = POD["containers"][0]


def test_the_environment_is_settings() -> None:
    env = {e["name"]: e.get("value", "x") for e in WORKER["env"]}
    assert all(name.startswith(PREFIX) for name in env)
    settings = load(env=env).settings
    assert settings.drain_seconds + 5 <= POD["terminationGracePeriodSeconds"]
    assert settings.on_limit == "wait", "a Deployment starts again whatever has ended"
    assert WORKER["ports"] == [{"name": "metrics", "containerPort": Settings().port}]
    mounted = {m["mountPath"] for m in WORKER["volumeMounts"]}
    assert settings.cache_dir in mounted and settings.questions and any(settings.questions.startswith(m) for m in mounted)
    assert {m["name"] for m in WORKER["volumeMounts"]} == {v["name"] for v in POD["volumes"]}


def test_a_service_of_the_same_name_puts_nothing_among_the_settings() -> None:
    """What Kubernetes adds for a Service named like the Deployment is an error of the settings, as any unknown key is."""
    name = DEPLOYMENT["metadata"]["name"].upper().replace("-", "_")
    with pytest.raises(ConfigError, match=f"{name}_SERVICE_HOST"):
        load(env={f"{name}_SERVICE_HOST": "10.0.0.7"})
    assert POD["enableServiceLinks"] is False


def test_the_pod_is_no_root_and_is_watched() -> None:
    assert POD["securityContext"]["runAsNonRoot"] and WORKER["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert WORKER["livenessProbe"]["httpGet"]["path"] == "/healthz" and WORKER["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert BUDGET["spec"]["selector"] == DEPLOYMENT["spec"]["selector"]


@pytest.mark.parametrize("faulty", [False, True])
def test_the_manifest_fits_the_schema_of_kubernetes(faulty: bool, tmp_path: Path) -> None:
    """Kubernetes' own, as kubernetes-validate (extra `dev`) carries it; a misspelt key does not fit. KEDA's is not among them."""
    assert importlib.util.find_spec("kubernetes_validate"), "kubernetes-validate is missing: pip install -c constraints.txt kubernetes-validate"
    text = (COMPOSE / "k8s" / "worker.yaml").read_text("utf-8")
    (tmp_path / "worker.yaml").write_text(text.replace("terminationGracePeriodSeconds", "terminationGraceSeconds") if faulty else text, "utf-8")
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", "1.34", str(tmp_path / "worker.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert bool(done.returncode) is faulty, done.stdout + done.stderr
    assert ("terminationGraceSeconds" in done.stdout + done.stderr) is faulty


def test_scaling_follows_the_worker_and_its_topic() -> None:
    """The rules that keep an autoscaler from doing harm: bounded by partitions, blind to stuck ones, slow to shrink."""
    spec, trigger = SCALED["spec"], SCALED["spec"]["triggers"][0]["metadata"]
    s = Settings()
    assert spec["scaleTargetRef"]["name"] == DEPLOYMENT["metadata"]["name"]
    assert (trigger["topic"], trigger["consumerGroup"], trigger["offsetResetPolicy"]) == (s.input_topic, s.group, "earliest")
    command = compose_services()["topics"]["command"]
    assert spec["maxReplicaCount"] == int(command[command.index("--partitions") + 1])
    assert (trigger["allowIdleConsumers"], trigger["excludePersistentLag"], trigger["scaleToZeroOnInvalidOffset"]) == ("false", "true", "false")
    down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert spec["cooldownPeriod"] >= 600 and down["stabilizationWindowSeconds"] >= 600 and down["policies"][0]["value"] == 1
    assert all(isinstance(v, str) for v in trigger.values()), "KEDA takes strings only"
