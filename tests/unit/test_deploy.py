"""The files of `deploy/`, checked by linters and against existing commands, variables and paths.

No test starts a container.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from pipelines.alerts.receivers import ALERTS, PASSWORD, read_alerts
from pipelines.cli import build
from pipelines.maintenance.budgets import UPKEEP
from pipelines.processes.programs import Address, Service
from pipelines.shared_config import problems_of_all
from pipelines.tables import POSTGRES
from scripts.installer import locked_python
from storage_core.change.declaration_parts import AUTOMATION

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "tidemark.yaml").read_text()))
CONTAINERFILE = (DEPLOY / "Containerfile").read_text().replace("\\\n", "")
UNIT = DEPLOY / "systemd" / "tidemark@.service"
PAGE = (ROOT / "docs" / "deployment.md").read_text()


COMPOSED = """
import sys
from compose_spec import PyOptions
composed = PyOptions(apply_merge=True).from_yaml(sys.stdin.read())
composed.validate()
print(*composed.service_names())
"""
"""A linter program that prints the service names if the text follows the compose specification."""


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Return the parsed arguments of the command, or raise its error."""
    name, *rest = arguments
    group: Any = typer.main.get_command(build())
    return dict(group.commands[name].make_context(name, list(rest)).params)


def pods() -> dict[str, dict[str, Any]]:
    """Return the specifications of the pods in the Kubernetes file, by the name of their container."""
    workloads = [each for each in KUBERNETES if each["kind"] in ("Deployment", "StatefulSet")]
    found = [each["spec"]["template"]["spec"] for each in workloads]
    return {pod["containers"][0]["name"]: pod for pod in found}


def containers() -> dict[str, dict[str, Any]]:
    """Return the containers of the Kubernetes file by name. Each pod has one container."""
    found = {name: pod["containers"] for name, pod in pods().items()}
    return {name: container for name, (container,) in found.items()}


def unit(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of systemd have capitals
    parser.read_string(text)
    return parser


def judged(program: str, *arguments: object, text: str | None = None) -> str:
    """Run a linter on a file or a text and return its output. Fail with the output if the linter finds a fault."""
    python = locked_python("linters")
    command = [str(python.with_name(program)), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_linters_of_containers_compose_and_kubernetes_accept_the_files() -> None:
    assert judged("hadolint", DEPLOY / "Containerfile") == ""
    text = re.sub(r"\$\{(\w+):\?\}", r"/\1", (DEPLOY / "compose.yaml").read_text())  # give each variable a value
    assert judged("python", "-c", COMPOSED, text=text).split() == [*COMPOSE["services"]]
    judged("kubernetes-validate", "--strict", DEPLOY / "kubernetes" / "tidemark.yaml")


def test_each_place_runs_the_three_processes_and_each_command_is_one_that_there_is() -> None:
    of_compose = {name: each["command"] for name, each in COMPOSE["services"].items() if name in [*Service]}
    of_kubernetes = {name: each["args"] for name, each in containers().items()}
    line = shlex.split(unit(UNIT.read_text())["Service"]["ExecStart"])
    of_systemd = {name: [part.replace("%i", name) for part in line[1:]] for name in Service}
    for commands in (of_compose, of_kubernetes, of_systemd):
        assert commands.keys() == set(Service)
        for name, command in commands.items():
            arguments = parsed(command)
            assert arguments["service"] == name
            assert Address.parse(arguments["code"]).target()
    target = unit((UNIT.parent / "tidemark.target").read_text())["Unit"]["Wants"].split()
    assert target == [f"tidemark@{name}.service" for name in Service]


def test_the_processes_find_each_other() -> None:
    services = COMPOSE["services"]
    (address,) = {parsed(services[name]["command"])["code"] for name in Service}
    assert Address.parse(address) == Address(host=services["code"]["hostname"], port=4266)
    served, asked, of_webserver = (parsed(containers()[name]["args"])["code"] for name in Service)
    names = {each["metadata"]["name"]: each for each in KUBERNETES if each["kind"] == "Service"}
    assert asked == of_webserver == f"tidemark-code:{names['tidemark-code']['spec']['ports'][0]['port']}"
    assert Address.parse(served).port == Address.parse(asked).port
    for each in KUBERNETES:
        if each["kind"] != "Service":
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"] == labels
    remote = services["code"]["environment"]["SPARK_REMOTE"]
    assert remote == "sc://spark:15002"
    assert "spark.connect.grpc.binding.port=15002" in services["spark"]["command"]


def test_the_database_of_compose_is_the_one_that_dagster_is_given_and_no_password_is_in_the_file() -> None:
    services = COMPOSE["services"]
    url = services["code"]["environment"][POSTGRES]
    of_database = services["postgres"]["environment"]
    password = of_database["POSTGRES_PASSWORD"]
    assert re.fullmatch(r"\$\{POSTGRES_PASSWORD:\?\}", password)
    assert url == f"postgresql://{of_database['POSTGRES_USER']}:{password}@postgres:5432/{of_database['POSTGRES_DB']}"
    for name in Service:
        assert services[name]["environment"][POSTGRES] == url
        assert services[name]["restart"] == "unless-stopped"


def test_compose_passes_the_variables_of_the_store_of_the_proxy_and_of_the_mail_server() -> None:
    passed = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "TIDEMARK_ALLOW_HOST", PASSWORD)
    for name in [*Service, "spark"]:
        environment = COMPOSE["services"][name]["environment"]
        assert {each for each in passed if environment.get(each, "") is not None} == set(), name
    listed = {name for name, value in COMPOSE["services"]["code"]["environment"].items() if value is None}
    assert {name for name in listed if f"`{name}`" not in PAGE} == set(), "the page names what reaches the containers"


def test_the_pods_get_every_file_of_the_declarations() -> None:
    mounted = {
        name: {each["mountPath"]: each for each in found["volumeMounts"]} for name, found in containers().items()
    }
    assert all(mounts["/srv/tidemark/tables"]["readOnly"] for mounts in mounted.values())
    beside = {path: each.get("subPath") for path, each in mounted["code"].items() if not path.endswith("/tables")}
    files = {f"/srv/tidemark/{name}": name for name in (ALERTS, AUTOMATION, UPKEEP)}
    assert beside == {**files, "/srv/tidemark/raw_logs": None}
    needed = set()
    for name, pod in pods().items():
        volumes = {each["name"]: each["configMap"] for each in pod["volumes"]}
        assert {each["name"] for each in mounted[name].values()} == volumes.keys()
        needed |= {each["name"] for each in volumes.values() if not each.get("optional")}
        # Without the optional volume, no raw log is declared. A file that is mounted from a missing volume would become
        # a folder.
        assert {each["name"] for each in volumes.values() if each.get("optional")} <= {"tidemark-raw-logs"}
        secrets = {each["secretRef"]["name"] for each in pod["containers"][0]["envFrom"]}
        assert secrets == {"tidemark"}
    made = set(re.findall(r"^kubectl create configmap (\S+)", PAGE, re.MULTILINE))
    assert needed <= made <= {*needed, "tidemark-raw-logs"}
    assert re.findall(r"^kubectl create secret generic (\S+)", PAGE, re.MULTILINE) == ["tidemark"]
    (sources,) = re.findall(r"^kubectl create configmap tidemark-files (.*)$", PAGE, re.MULTILINE)
    assert {part.removeprefix("--from-file=") for part in sources.split()} == {*files.values()}


def test_empty_files_of_all_tables_declare_nothing(tmp_path: Path) -> None:
    for name in (ALERTS, AUTOMATION, UPKEEP):
        (tmp_path / name).touch()  # docs advise empty files for Kubernetes
    assert list(problems_of_all(tmp_path)) == []
    assert read_alerts(tmp_path).receivers == ()


def test_every_pod_has_one_image_with_a_tag_limits_and_probes() -> None:
    images = {each["image"] for each in containers().values()}
    assert images == {"registry.example.com/tidemark:TAG"}
    assert all(image in PAGE for image in images)
    for name, container in containers().items():
        resources = container["resources"]
        assert resources["requests"].keys() == {"cpu", "memory"}, name
        assert resources["limits"].keys() == {"memory"}, "a limit of processor time would slow down every run"
        assert container["livenessProbe"], name
        ports = {each["name"] for each in container.get("ports", ())}
        probed = [probe for each in ("livenessProbe", "readinessProbe") if (probe := container.get(each))]
        for probe in probed:
            port = (probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port")
            assert port in {*ports, None}
    assert "readinessProbe" in containers()["webserver"]
    assert "readinessProbe" in containers()["code"]


def test_the_policy_of_the_page_allows_what_the_table_of_roles_says() -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    policy = json.loads(text)
    actions = {each["Resource"].rpartition(":")[2]: each["Action"] for each in policy["Statement"]}
    own, landing, bucket = actions["BUCKET/warehouse/*"], actions["BUCKET/landing/*"], actions["BUCKET"]
    (row,) = re.findall(r"^\| code server with its runs.*$", PAGE, re.MULTILINE)
    cells = [{f"s3:{name}" for name in re.findall(r"`([A-Z]\w+)`", cell)} for cell in row.split("|")[2:-1]]
    assert cells[0] == {*own, bucket} == cells[2]
    assert cells[1] == {landing, bucket}
    assert {each["Effect"] for each in policy["Statement"]} == {"Allow"}


def test_the_webserver_of_compose_is_reached_from_its_machine_only() -> None:
    published = {name: each["ports"] for name, each in COMPOSE["services"].items() if "ports" in each}
    port = parsed(COMPOSE["services"]["webserver"]["command"])["port"]
    assert published == {"webserver": [f"127.0.0.1:{port}:{port}"]}


def test_all_that_is_copied_into_the_image_is_there_and_all_packages_are() -> None:
    build_of_code = COMPOSE["services"]["code"]["build"]
    assert (DEPLOY / build_of_code["context"] / build_of_code["dockerfile"]).is_file()
    copied = {part for line in re.findall(r"^COPY (.*)$", CONTAINERFILE, re.MULTILINE) for part in line.split()[:-1]}
    assert {name for name in copied if not (ROOT / name).exists()} == set()
    installed = set(re.findall(r"-r (\S+)", CONTAINERFILE))
    assert installed == {name for name in copied if name.startswith("requirements/")}
    packages = {path.parent.name for path in ROOT.glob("*/py.typed")}
    assert packages <= copied
    locked = (ROOT / "requirements" / "container.lock").read_text()
    for each in ("dagster-webserver", "dagster-postgres", "grpcio", "pyspark"):
        assert re.search(rf"^{each}(\[\w+\])?==", locked, re.MULTILINE), each


def test_systemd_takes_the_units_where_it_is_installed(tmp_path: Path) -> None:
    assert unit(UNIT.read_text())["Service"]["Restart"] == "always"
    if (verify := shutil.which("systemd-analyze")) is None:
        return
    here = str(Path(sys.executable).parent / "tidemark")
    (tmp_path / UNIT.name).write_text(UNIT.read_text().replace("/opt/tidemark/bin/tidemark", here))
    target = tmp_path / "tidemark.target"
    target.write_bytes((UNIT.parent / target.name).read_bytes())
    for each in (tmp_path / "tidemark@code.service", target):
        done = subprocess.run([verify, "verify", str(each)], capture_output=True, text=True, check=False)
        complaints = [line for line in done.stderr.splitlines() if "tidemark" in line]
        assert (done.returncode, complaints) == (0, []), done.stderr


@pytest.mark.parametrize("text", ["", "4266", "code", ":4266", "/" + "x" * 100])
def test_what_is_no_address_of_a_code_server_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address of a code server\. Give HOST:PORT"):
        Address.parse(text)
