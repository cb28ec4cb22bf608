"""The Helm chart in deploy/helm: what it renders is kept here, and starts what the commands understand.

Rendered anew, with `helm` on the PATH: `pytest tests/tso/test_helm.py` says how the kept files differ; with
PYOMID_KEEP_HELM=1 it writes them. Without it the kept files are checked, and that they are of the chart as it is.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from pyomid.cli import tso, upkeep
from pyomid.config import parse_url

pytestmark = pytest.mark.fast

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "pyomid"
KEPT = Path(__file__).parents[1] / "fixtures" / "helm"
URL = "omid+hbase://zk1:2181,zk2:2181/hbase?storeRetrySeconds=120"
CASES = {
    "least": ("--set-literal", f"url={URL}"),
    "all": (
        "--set-literal", f"url={URL}",
        "--set", "secrets.tls=shop-tls,secrets.requireClientCertificates=true,secrets.token=shop-token",
        "--set", "secrets.store=shop-hbase,secrets.krb5Conf=krb5.conf,podMonitor.enabled=true",
        "--set", "tso.options.store-retry=60",
        "--set", "image.pullSecrets={registry},nodeSelector.disk=fast",
    ),
}  # fmt: skip
HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="there is no helm here")


def digest() -> str:
    """Of the chart's files."""
    found = hashlib.sha256()
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(CHART)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def rendered(*options: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    command = [HELM, "template", "shop", str(CHART), "--namespace", "data", "--kube-version", "1.29.0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def objects(case: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((KEPT / f"{case}.yaml").read_text()) if each]


def of_kind(case: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in objects(case) if each["kind"] == kind]


def tso_pod(case: str) -> dict[str, Any]:
    (found,) = of_kind(case, "StatefulSet")
    return dict(found["spec"]["template"]["spec"])


def environment(pod: dict[str, Any]) -> dict[str, str]:
    (container,) = pod["containers"]
    return {each["name"]: each.get("value", "shop-tso-0") for each in container["env"]}


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_the_stored_files_equal_helms_output(case: str) -> None:
    done = rendered(*CASES[case])
    assert done.returncode == 0, done.stderr
    if os.environ.get("PYOMID_KEEP_HELM"):
        (KEPT / f"{case}.yaml").write_text(f"# {digest()}\n{done.stdout}")
    assert objects(case) == [each for each in yaml.safe_load_all(done.stdout) if each]


@pytest.mark.parametrize("case", CASES)
def test_the_stored_files_match_the_chart(case: str) -> None:
    assert (KEPT / f"{case}.yaml").read_text().startswith(f"# {digest()}\n"), "render them anew: see above"


@needs_helm
def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    assert HELM is not None
    command = [HELM, "lint", str(CHART), "--strict", *CASES["least"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@needs_helm
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "set url to the database"),
        (("--set", "url=omid:///var/lib/db"), "set url to the database"),
        ((*CASES["least"], "--set", "secrets.token=t"), "secrets.token needs secrets.tls"),
        ((*CASES["least"], "--set", "secrets.requireClientCertificates=true"), "needs secrets.tls"),
    ],
)
def test_invalid_values_are_refused(options: tuple[str, ...], said: str) -> None:
    done = rendered(*options)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize("case", CASES)
def test_every_option_that_the_chart_sets_is_one_of_the_tso(case: str) -> None:
    given = environment(tso_pod(case))
    parser = ArgumentParser()
    tso.add_command(parser.add_subparsers())
    read = tso.read_options(parser.parse_args(["tso"]), given)
    assert read["store"] == URL
    assert parse_url(read["store"])
    assert read["announce"] == "$(POD_NAME).shop-tso.data.svc:24758"
    known = {tso.ENVIRONMENT_PREFIX + option.attribute.upper() for option in tso.OPTIONS}
    assert {name for name in given if name.startswith("PYOMID_")} <= known
    if case == "all":
        assert read["store-retry"] == 60.0
        assert read["tls-client-ca"] == "/etc/pyomid/tls/ca.crt"
        assert given["KRB5_CONFIG"] == "/etc/pyomid/store/krb5.conf"


@pytest.mark.parametrize("case", CASES)
def test_a_pod_counts_as_ready_once_it_leads_or_could(case: str) -> None:
    (container,) = tso_pod(case)["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready?standby=yes"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    (budget,) = of_kind(case, "PodDisruptionBudget")
    (pair,) = of_kind(case, "StatefulSet")
    assert pair["spec"]["replicas"] - budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"].items() <= pair["spec"]["template"]["metadata"]["labels"].items()
    (service,) = of_kind(case, "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["metadata"]["name"] == pair["spec"]["serviceName"]


@pytest.mark.parametrize("case", CASES)
def test_the_upkeep_that_the_chart_starts_is_a_command(case: str) -> None:
    parser = ArgumentParser()
    upkeep.add_command(parser.add_subparsers(dest="command"))
    started = []
    for deployment in of_kind(case, "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        (url,) = [each["value"] for each in container["env"] if each["name"] == "PYOMID_URL"]
        program, *words = container["command"]
        assert program == "pyomid"
        read = parser.parse_args([word.replace("$(PYOMID_URL)", url) for word in words])
        started.append((read.command, read.url, read.every))
    assert started == [("compact", URL, 86400.0), ("sanitize", URL, 3600.0)]


@pytest.mark.parametrize("case", CASES)
def test_no_secret_is_in_the_chart_and_each_is_mounted(case: str) -> None:
    assert not of_kind(case, "Secret")
    pods = [tso_pod(case), *(each["spec"]["template"]["spec"] for each in of_kind(case, "Deployment"))]
    for pod in pods:
        secrets = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
        wanted = {"tls": "shop-tls", "token": "shop-token", "store": "shop-hbase"} if case == "all" else {}
        assert secrets == wanted
        (container,) = pod["containers"]
        assert {each["name"] for each in container["volumeMounts"]} == {"tmp", *wanted}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("case", CASES)
def test_the_monitor_scrapes_under_the_job_of_the_alert_rules(case: str) -> None:
    monitors = of_kind(case, "PodMonitor")
    assert len(monitors) == (case == "all")
    rules = (CHART.parents[1] / "monitoring" / "alerts.yaml").read_text()
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        (relabeling,) = endpoint["relabelings"]
        assert f'up{{job="{relabeling["replacement"]}"}}' in rules


def test_the_notes_name_the_first_command() -> None:
    line = next(each for each in (CHART / "templates" / "NOTES.txt").read_text().splitlines() if "pyomid init" in each)
    assert shlex.split(line.split("pyomid ")[1])[0] == "init"
