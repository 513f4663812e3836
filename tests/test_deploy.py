"""The container file and the manifests: Docker and Kubernetes do not run here, so that what they say is checked
against what the package does."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service is not installed: pip install 'realmlm[serve]'")
from fastapi.routing import APIRoute

import realmlm
from realmlm.cli import parse
from realmlm.commands import COMMANDS
from realmlm.serve.listen import END_S, GRACE_S
from realmlm.serve.routes import operation_routes
from realmlm.settings import Serve

yaml = pytest.importorskip("yaml", reason="manifests are YAML: pip install pyyaml")

DEPLOY = Path(__file__).parents[1] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
MANIFESTS = [
    manifest
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(file.read_text("utf-8"))
]
PODS = {
    one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in MANIFESTS if "template" in one["spec"]
}
OURS = f"realmlm:{realmlm.__version__}"
USER = 10001


def instructions() -> list[tuple[str, str]]:
    """Of the container file: name and the rest of the line."""
    text = (DEPLOY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest.strip()) for name, rest in (line.split(None, 1) for line in lines)]


def parsed(arguments: list[str]) -> Any:
    """The settings that the arguments of the image's command give."""
    name = next(name for name in COMMANDS if arguments[: len(name.split())] == name.split())
    return parse(name, COMMANDS[name][0], arguments[len(name.split()) :])


def routes() -> set[str]:
    of_service: Any = None  # they are not called
    made = operation_routes(of_service, of_service, of_service).routes
    return {route.path for route in made if isinstance(route, APIRoute)}


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each with its pod."""
    for pod in PODS.values():
        for container in pod["containers"]:
            yield pod, container


# --- the container file -------------------------------------------------------------------------------------


def test_the_image_is_made_of_wheels_without_network() -> None:
    copied = [rest for name, rest in instructions() if name in ("COPY", "ADD")]
    assert copied == ["wheelhouse /wheelhouse", "--from=build /opt/realmlm /opt/realmlm"]
    (installing,) = [rest for name, rest in instructions() if name == "RUN" and "pip" in rest]
    assert "--no-index" in installing
    assert not any(word in installing for word in ("http", "apt", "curl"))
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").split("\n")
    assert [line for line in kept if line and line[0] != "#"] == ["*", "!wheelhouse"]


def test_bases_and_images_are_pinned() -> None:
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    images = [service["image"] for service in COMPOSE["services"].values()]
    images += [container["image"] for _, container in containers()]
    for image in bases + images:
        assert re.fullmatch(r"[\w/.-]+:\d+\.\d+\.\d+[\w.-]*", image), image
    assert OURS in images
    assert len(set(images)) == 2


def test_the_image_can_build_kernels_for_a_gpu() -> None:
    """With gcc and libc6-dev, which the slim variant lacks, in a cache whose files may be executed."""
    *_, base = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert re.fullmatch(r"python:[\d.]+-bookworm", base)
    environment = " ".join(rest for name, rest in instructions() if name == "ENV")
    assert re.findall(r"TRITON_CACHE_DIR=(\S+)", environment) == ["/cache/triton"]


def test_what_runs_is_no_root_and_can_be_asked_for_its_health() -> None:
    said = dict(instructions())
    names = [name for name, _ in instructions()]
    assert said["USER"] == f"{USER}:{USER}"
    last = len(names) - names[::-1].index("FROM")
    assert "USER" in names[last:]
    assert "COPY" not in names[names.index("USER") :]
    assert said["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(said["ENTRYPOINT"]) == ["realmlm"]
    settings = parsed(json.loads(said["CMD"]))
    assert isinstance(settings, Serve)
    assert str(settings.port) == said["EXPOSE"]
    assert settings.host == "0.0.0.0"
    (asked,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", said["HEALTHCHECK"])
    assert asked[0] == said["EXPOSE"]
    assert asked[1] in routes()


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_tells_a_service_that_is_ready(status: int) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        check = dict(instructions())["HEALTHCHECK"]
        _, *arguments = json.loads(check[check.index("[") :].replace(":8460", f":{server.server_port}"))
        done = subprocess.run([sys.executable, *arguments], capture_output=True, timeout=30, check=False)
        server.shutdown()
    assert (done.returncode == 0) == (status == 200)


# --- compose ------------------------------------------------------------------------------------------------


def test_compose_says_what_the_command_understands() -> None:
    services = COMPOSE["services"]
    ours = {name: service for name, service in services.items() if service["image"] == OURS}
    assert set(ours) == {"vectors", "service"}
    for service in ours.values():
        assert service["user"] == f"{USER}:{USER}"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert set(service["secrets"]) <= set(COMPOSE["secrets"])
    vectors, service = (parsed(ours[name]["command"]) for name in ("vectors", "service"))
    # both mean the same table, and no password is part of its name
    assert service.index is not None
    assert str(service.index).removeprefix("postgres:") in services["vectors"]["command"]
    assert vectors.corpus == service.corpus == Path("/corpus")
    assert f"/run/secrets/{Path(service.token_file).name}" == str(service.token_file)
    assert "token" in ours["service"]["secrets"]
    assert not re.search(r"//[^/@]*:[^/@]*@", (DEPLOY / "compose.yaml").read_text("utf-8"))
    assert service.allow_host == ("service",)
    assert float(services["service"]["stop_grace_period"].removesuffix("s")) > GRACE_S + END_S
    assert all(port.startswith("127.0.0.1:") for port in services["service"]["ports"])
    for one in services.values():
        for other in one.get("depends_on", {}):
            assert other in services


def test_every_service_of_compose_is_confined() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert re.fullmatch(r"\d+g", service["mem_limit"]), name
        assert service["pids_limit"] <= 1024, name
    of_postgres = COMPOSE["services"]["postgres"]["cap_add"]
    assert set(of_postgres) == {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}
    assert not any("cap_add" in one for one in COMPOSE["services"].values() if one["image"] == OURS)


# --- Kubernetes ---------------------------------------------------------------------------------------------


def test_every_pod_is_confined_and_says_what_it_needs() -> None:
    assert {"realmlm-service", "realmlm-trainer"} <= set(PODS)
    for pod, container in containers():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == USER
        assert pod["automountServiceAccountToken"] is False
        confined = container["securityContext"]
        assert confined["readOnlyRootFilesystem"]
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["capabilities"]["drop"] == ["ALL"]
        for kind in ("requests", "limits"):
            assert {"cpu", "memory"} <= set(container["resources"][kind])
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
        assert {"/tmp", "/cache"} <= set(mounted.values())  # what is written beside the results


def test_claims_and_selectors_name_what_there_is() -> None:
    claims = {one["metadata"]["name"] for one in MANIFESTS if one["kind"] == "PersistentVolumeClaim"}
    asked = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in PODS.values()
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert asked == claims
    (service,) = [one for one in MANIFESTS if one["kind"] == "Service"]
    (deployment,) = [one for one in MANIFESTS if one["kind"] == "Deployment"]
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]


def test_the_service_is_started_probed_and_stopped_as_it_wants() -> None:
    pod = PODS["realmlm-service"]
    (container,) = pod["containers"]
    settings = parsed(container["args"])
    (port,) = container["ports"]
    assert settings.port == port["containerPort"]
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert str(Path(settings.token_file).parent) in mounted
    assert str(Path(settings.corpus).parent) in mounted
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in routes()
        assert asked["port"] == port["name"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"  # a full queue is no reason to kill it
    assert pod["terminationGracePeriodSeconds"] > GRACE_S + END_S
    (service,) = [one for one in MANIFESTS if one["kind"] == "Service"]
    assert settings.allow_host == (service["metadata"]["name"],)


def test_the_trainer_runs_under_torchrun_with_a_gpu_for_each_rank() -> None:
    from torch.distributed.run import get_args_parser

    (container,) = PODS["realmlm-trainer"]["containers"]
    program, *words = container["command"] + container["args"]
    assert program == "torchrun"
    torchrun = get_args_parser().parse_args(words)
    assert torchrun.module
    assert torchrun.training_script == "realmlm"
    settings = parsed(torchrun.training_script_args)
    for kind in ("requests", "limits"):
        assert container["resources"][kind]["nvidia.com/gpu"] == torchrun.nproc_per_node
    mounted = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
    for place in (settings.model, settings.corpus, settings.out):
        assert any(mount in Path(place).parents for mount in mounted)


def test_torchrun_leaves_ranks_the_time_to_write_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """It kills them 30 seconds after SIGTERM unless it is told otherwise, Kubernetes when the pod's time is up."""
    from torch.distributed.launcher.api import LaunchConfig

    pod = PODS["realmlm-trainer"]
    (container,) = pod["containers"]
    for variable in container.get("env", ()):
        monkeypatch.setenv(variable["name"], variable["value"])
    made = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2)
    if not hasattr(made, "shutdown_timeout"):
        pytest.skip("this release of torch has 30 seconds and no way to change them")
    assert (
        pod["terminationGracePeriodSeconds"] - 30
        < made.shutdown_timeout
        < pod["terminationGracePeriodSeconds"]
    )
