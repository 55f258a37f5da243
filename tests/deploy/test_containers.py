"""The image and the manifests agree with the settings in them, with each other and with the server."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rondel import __version__
from rondel.client.cli.app import app
from rondel.server.app import LAST_SECONDS
from rondel.server.process import _HANGING_SECONDS
from rondel.server.settings import load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ROOT = DEPLOY.parent
DOCKERFILE = (DEPLOY / "docker/Dockerfile").read_text(encoding="utf-8")
LAST = LAST_SECONDS + _HANGING_SECONDS
GIB = 1 << 30


def settings(folder: str) -> dict[str, Any]:
    return tomllib.loads((DEPLOY / folder / "rondel.toml").read_text(encoding="utf-8"))


def manifests() -> list[dict[str, Any]]:
    folder = DEPLOY / "kubernetes"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert {path.name for path in folder.glob("*.yaml")} == {*listed, "kustomization.yaml"}
    texts = [(folder / name).read_text(encoding="utf-8") for name in listed]
    return [each for text in texts for each in yaml.safe_load_all(text)]


def one(kind: str, name: str = "rondel") -> dict[str, Any]:
    (found,) = (m for m in manifests() if (m["kind"], m["metadata"]["name"]) == (kind, name))
    return found


def pod() -> dict[str, Any]:
    return dict(one("StatefulSet")["spec"]["template"]["spec"])


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return dict(found)


def size(text: str) -> int:
    assert text.endswith("Gi")
    return int(text[:-2]) * GIB


@pytest.mark.parametrize("folder", ["docker", "kubernetes", "systemd"])
def test_the_settings_can_be(folder: str) -> None:
    load({}, file=str(DEPLOY / folder / "rondel.toml"), environment={})


def test_the_image_can_be_tried_as_the_page_says() -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    given = dict(re.findall(r"--env (RONDEL_SERVE_\w+)=(\S*)", page))
    config = load({}, file=str(DEPLOY / "docker/rondel.toml"), environment=given).config
    assert (config.allow_insecure_bind, config.tls_cert, config.tenants_file) == (True, None, None)


@pytest.mark.parametrize("folder", ["docker", "kubernetes", "systemd"])
def test_what_others_can_reach_wants_tls_and_tenants(folder: str) -> None:
    said = settings(folder)
    assert "allow_insecure_bind" not in said
    if said["host"] != "127.0.0.1":
        assert {"tls_cert", "tls_key", "tenants_file"} <= set(said)


def test_the_pod_s_ports_are_those_of_the_settings() -> None:
    said = settings("kubernetes")
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports == {"grpc": said["port"], "health": said["health_port"], "metrics": said["admin_port"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container()[probe]["grpc"]["port"] == said["health_port"]
    assert "service" not in container()["readinessProbe"]["grpc"]
    assert container()["livenessProbe"]["grpc"]["service"] == "liveness"
    for service in ("rondel", "rondel-pods"):
        for port in one("Service", service)["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    policy = one("NetworkPolicy")["spec"]
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": name}] for name in ports]
    # Only probes may come from anywhere.
    assert [bool(rule.get("from")) for rule in policy["ingress"]] == [True, False, True]


def test_a_pod_s_stop_is_not_cut_short() -> None:
    said = settings("kubernetes")
    longest = said["pre_stop_seconds"] + said["drain_seconds"] + LAST
    assert longest < pod()["terminationGracePeriodSeconds"]
    assert said["pre_stop_seconds"] >= 5  # endpoints take a while to forget a pod


def test_a_pod_has_room_for_its_budget() -> None:
    budget = settings("kubernetes")["budget_bytes"]
    resources = container()["resources"]
    assert resources["requests"] == resources["limits"]
    assert budget + GIB <= size(resources["limits"]["memory"])
    (claim,) = one("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert budget + GIB <= size(claim["spec"]["resources"]["requests"]["storage"])


def test_every_file_of_the_settings_is_mounted() -> None:
    mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
    said = settings("kubernetes")
    for setting, volume in (
        ("tls_cert", "tls"),
        ("tls_key", "tls"),
        ("tenants_file", "tenants"),
        ("arena_file", "state"),
    ):
        assert str(Path(said[setting]).parent) == mounts[volume]["mountPath"]
        assert ("readOnly" in mounts[volume]) == (volume != "state")
        assert "subPath" not in mounts[volume]
    assert container()["args"] == ["serve", "--config", f"{mounts['config']['mountPath']}/rondel.toml"]
    claims = {claim["metadata"]["name"] for claim in one("StatefulSet")["spec"]["volumeClaimTemplates"]}
    assert set(mounts) == {volume["name"] for volume in pod()["volumes"]} | claims
    secrets = {
        volume["name"]: volume["secret"]["secretName"] for volume in pod()["volumes"] if "secret" in volume
    }
    assert secrets == {"tls": "rondel-tls", "tenants": "rondel-tenants"}


def test_the_pod_may_as_little_as_the_strictest_standard_wants() -> None:
    assert pod()["securityContext"]["runAsNonRoot"]
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_selectors_find_the_pods() -> None:
    labels = one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert one("StatefulSet")["spec"]["selector"]["matchLabels"] == labels
    assert one("StatefulSet")["spec"]["serviceName"] == one("Service", "rondel-pods")["metadata"]["name"]
    assert one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels


def test_the_version_is_this_one() -> None:
    kustomization = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text(encoding="utf-8"))
    assert kustomization["images"] == [{"name": container()["image"], "newTag": __version__}]
    assert f"rondel:{__version__} " in DOCKERFILE


def test_the_image_s_user_is_the_pod_s() -> None:
    (user,) = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    context = pod()["securityContext"]
    assert [int(number) for number in user] == [context["runAsUser"], context["runAsGroup"]]
    assert context["fsGroup"] == context["runAsGroup"]


def test_the_image_s_ports_and_check_are_those_of_its_settings() -> None:
    said = settings("docker")
    assert re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE) == [f"{said['port']} {said['health_port']}"]
    assert f'CMD ["rondel", "health", "127.0.0.1:{said["health_port"]}"]' in DOCKERFILE
    assert 'CMD ["serve", "--config", "/etc/rondel/rondel.toml"]' in DOCKERFILE
    for command in ("health", "serve"):
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_what_the_image_is_made_of_is_in_the_build_s_context() -> None:
    ignore = (DEPLOY / "docker/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in ignore if line.startswith("!")}
    assert {"pyproject.toml", "setup.py", "MANIFEST.in", "src"} <= kept
    # The package is links to the rooms, so those must be there too, and whatever MANIFEST.in names.
    rooms = {path.resolve().relative_to(ROOT).parts[0] for path in (ROOT / "src/rondel").iterdir()}
    assert rooms - {"src"} <= kept
    named = re.findall(r"^include (.*)$", (ROOT / "MANIFEST.in").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(" ".join(named).split()) <= kept
    assert all((ROOT / path).exists() for path in kept)
