"""Services, probes and policies: ports that are served, pods that are chosen, names that match."""

import re
from pathlib import Path

import pytest

from tests.deploy.manifests import (
    ALL,
    SECURE,
    Object,
    component,
    container_of,
    environment,
    named,
    needs_kubectl,
    of_kind,
    pod_of,
    render,
    workloads,
)

pytestmark = needs_kubectl

every = pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)


def ports(workload: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container_of(workload)["ports"]}


def chosen(selector: Object, objects: list[Object]) -> list[Object]:
    wanted = selector.get("matchLabels", selector).items()
    return [w for w in workloads(objects) if wanted <= pod_of(w)["metadata"]["labels"].items()]


@every
def test_selectors_choose_the_pods_of_their_workload(folder: Path) -> None:
    objects = render(folder)
    for workload in of_kind(objects, "StatefulSet"):
        assert chosen(workload["spec"]["selector"], objects) == [workload]
        service = named(objects, "Service", workload["spec"]["serviceName"])
        assert chosen(service["spec"]["selector"], objects) == [workload]
    for service in of_kind(objects, "Service"):
        (workload,) = chosen(service["spec"]["selector"], objects)
        assert component(service) == component(workload)


@every
def test_services_lead_to_ports_of_their_pods(folder: Path) -> None:
    objects = render(folder)
    for service in of_kind(objects, "Service"):
        (workload,) = chosen(service["spec"]["selector"], objects)
        for port in service["spec"]["ports"]:
            assert ports(workload)[port["targetPort"]] == port["port"]


@every
def test_processes_listen_on_the_ports_of_their_pods(folder: Path) -> None:
    objects = render(folder)
    for workload in workloads(objects):
        values, role = environment(workload, objects), component(workload)
        section = role.replace("-", "_").upper()
        assert values[f"GRADMESH_{section}_LISTEN"] == f"0.0.0.0:{ports(workload)['grpc']}"
        assert values["GRADMESH_METRICS_LISTEN"] == f"0.0.0.0:{ports(workload)['metrics']}"
        if role != "coordinator":
            assert values["GRADMESH_TRANSPORT_LANE_PORT"] == str(ports(workload)["lane"])


@every
def test_probes_use_plaintext_endpoints_under_any_security(folder: Path) -> None:
    for workload in workloads(render(folder)):
        container = container_of(workload)
        paths = {}
        for kind in ("livenessProbe", "readinessProbe"):
            (way,) = (key for key in container[kind] if key in ("httpGet", "grpc", "tcpSocket"))
            assert way == "httpGet"
            assert container[kind][way].get("scheme", "HTTP") == "HTTP"
            assert container[kind][way]["port"] == "metrics"
            paths[kind] = container[kind][way]["path"]
        assert paths == {"livenessProbe": "/healthz", "readinessProbe": "/readyz"}


@every
def test_processes_resolve_each_other(folder: Path) -> None:
    objects = render(folder)
    for workload in workloads(objects):
        values, role = environment(workload, objects), component(workload)
        if role == "coordinator":
            continue
        section = role.replace("-", "_").upper()
        host, port = values[f"GRADMESH_{section}_COORDINATOR"].split(":")
        assert port in str(named(objects, "Service", host)["spec"]["ports"])
        # <host name of the pod>.<headless service>.<namespace>.svc
        pod, service, _, port = re.fullmatch(
            r"(.+)\.([a-z-]+)\.(\$\(POD_NAMESPACE\))\.svc:(\d+)",
            values[f"GRADMESH_{section}_ADVERTISE"],
        ).groups()  # type: ignore[union-attr]
        headless = named(objects, "Service", service)["spec"]
        assert headless["clusterIP"] == "None"
        assert headless["publishNotReadyAddresses"] is True
        assert int(port) == ports(workload)["grpc"]
        if workload["kind"] == "StatefulSet":
            assert (pod, service) == ("$(POD_NAME)", workload["spec"]["serviceName"])
        else:
            assert pod == "$(JOB_NAME)-$(POD_INDEX)"
            assert service == pod_of(workload)["spec"]["subdomain"]


@every
def test_policies_open_the_ports_that_are_used_and_no_others(folder: Path) -> None:
    objects = render(folder)
    policies = of_kind(objects, "NetworkPolicy")
    for workload in workloads(objects):
        labels = pod_of(workload)["metadata"]["labels"].items()
        own = [
            policy
            for policy in policies
            if policy["spec"]["podSelector"]["matchLabels"].items() <= labels
        ]
        assert any({"Ingress", "Egress"} == set(p["spec"]["policyTypes"]) for p in own), "deny"
        opened = {
            port["port"]
            for policy in own
            for rule in policy["spec"].get("ingress", ())
            for port in rule.get("ports", ())
        }
        assert opened - {"metrics"} == ports(workload).keys() - {"metrics"}
        for policy in own:
            for rule in policy["spec"].get("ingress", ()):
                assert rule["from"], "open to the world"


def _covers(pattern: str, host: str) -> bool:
    """Return whether a certificate's name matches a host, by the rules of TLS."""
    if not pattern.startswith("*."):
        return pattern == host
    # gRPC requires at least two dots after the star, and the star is one label.
    return pattern.count(".") >= 2 and host.partition(".")[2] == pattern[2:]


@pytest.mark.parametrize("folder", SECURE,
                         ids=lambda folder: folder.name)  # fmt: skip
def test_certificates_are_good_for_the_names_that_are_used(folder: Path) -> None:
    objects = render(folder)
    for workload in workloads(objects):
        role, values = component(workload), environment(workload, objects)
        certificate = named(objects, "Certificate", f"gradmesh-{role}")["spec"]
        (volume,) = (v for v in pod_of(workload)["spec"]["volumes"] if v["name"] == "tls")
        assert volume["secret"]["secretName"] == certificate["secretName"]
        assert {"server auth", "client auth"} <= set(certificate["usages"])
        section = role.replace("-", "_").upper()
        advertised = values.get(f"GRADMESH_{section}_ADVERTISE", "gradmesh-coordinator:7070")
        host = advertised.partition(":")[0].replace("$(POD_NAMESPACE)", "gradmesh")
        host = re.sub(r"\$\(\w+\)", "x", host)
        assert any(_covers(name, host) for name in certificate["dnsNames"]), host
        assert values["GRADMESH_SECURITY_TLS_REQUIRE_CLIENT_CERTIFICATE"] == "true"
    # `gradmesh status` uses a forwarded port.
    coordinator = named(objects, "Certificate", "gradmesh-coordinator")["spec"]
    assert "127.0.0.1" in coordinator["ipAddresses"]
