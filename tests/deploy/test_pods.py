"""Pods: identity, rights, start and end."""

import base64
from pathlib import Path

import pytest

from gradmesh.launch.kubernetes import bootstrap
from gradmesh.launch.kubernetes.secrets import reader_secret, token_in, token_secret
from tests.deploy.manifests import (
    ALL,
    Object,
    all_containers_of,
    component,
    container_of,
    environment,
    in_bytes,
    named,
    needs_kubectl,
    of_kind,
    pod_of,
    render,
    workloads,
)

pytestmark = needs_kubectl

every = pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)


@every
def test_each_component_has_one_workload(folder: Path) -> None:
    found = sorted(component(workload) for workload in workloads(render(folder)))

    assert found == ["coordinator", "parameter-server", "trainer"]


@every
def test_pods_have_no_rights_they_do_not_need(folder: Path) -> None:
    for workload in workloads(render(folder)):
        spec = pod_of(workload)["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in all_containers_of(workload):
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & spec.keys()
        assert all("hostPath" not in volume for volume in spec["volumes"])
        assert spec["enableServiceLinks"] is False


@every
def test_processes_have_no_api_credentials(folder: Path) -> None:
    objects = render(folder)

    for workload in workloads(objects):
        spec = pod_of(workload)["spec"]
        account = named(objects, "ServiceAccount", spec["serviceAccountName"])
        assert spec["automountServiceAccountToken"] is False
        assert account["automountServiceAccountToken"] is False
    (binding,) = of_kind(objects, "RoleBinding", "ClusterRoleBinding", "ClusterRole")
    assert binding["metadata"]["name"] == "gradmesh-token"


@every
def test_tokens_are_made_by_the_only_pod_with_rights(folder: Path) -> None:
    objects = render(folder)
    job, role = (named(objects, kind, "gradmesh-token") for kind in ("Job", "Role"))
    binding = named(objects, "RoleBinding", "gradmesh-token")
    spec = pod_of(job)["spec"]

    (subject,) = binding["subjects"]
    assert subject["name"] == spec["serviceAccountName"] == "gradmesh-token"
    assert subject["namespace"] == binding["metadata"]["namespace"]
    assert spec["automountServiceAccountToken"] is True
    assert {tuple(rule["resources"]) for rule in role["rules"]} == {("secrets",)}
    named_rights = {v for r in role["rules"] if "resourceNames" in r for v in r["verbs"]}
    any_name = {v for r in role["rules"] if "resourceNames" not in r for v in r["verbs"]}
    assert (named_rights, any_name) == ({"get"}, {"create"})
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["command"][-1] == bootstrap.__spec__.name
    assert container["args"] == ["gradmesh"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


@every
def test_every_process_requires_a_token(folder: Path) -> None:
    objects = render(folder)
    for workload in workloads(objects):
        values = environment(workload, objects)
        (mount,) = (m for m in container_of(workload)["volumeMounts"] if m["name"] == "token")
        (volume,) = (v for v in pod_of(workload)["spec"]["volumes"] if v["name"] == "token")
        assert volume["secret"]["secretName"] == "gradmesh-token"
        assert volume["secret"].get("optional", False) is False
        for key in ("token", "tokens"):
            name = f"GRADMESH_SECURITY_{key.upper()}_FILE"
            assert values[name] == f"{mount['mountPath']}/{key}"
        assert "GRADMESH_SECURITY_INSECURE" not in values
    # No manifest has a token in it.
    assert of_kind(objects, "Secret") == []


def test_forwarding_ports_is_not_enough_to_write() -> None:
    objects = render(ALL[0])
    viewer = named(objects, "Role", "gradmesh-viewer")["rules"]

    assert any("pods/portforward" in rule["resources"] for rule in viewer)
    readable = [rule for rule in viewer if "secrets" in rule["resources"]]
    assert [(r["resourceNames"], r["verbs"]) for r in readable] == [
        (["gradmesh-reader-token"], ["get"])
    ]
    reader = reader_secret("gradmesh")
    made = token_secret("gradmesh", reader)
    accepted = base64.b64decode(made["data"]["tokens"]).decode().splitlines()
    assert [line.partition(":")[0] for line in accepted] == ["admin", "reader"]
    assert token_in(reader) not in accepted[1], "the pods store its sum only"


def test_roles_name_each_right() -> None:
    for role in of_kind(render(ALL[0]), "Role"):
        for rule in role["rules"]:
            assert "secrets" not in rule["resources"] or "list" not in rule["verbs"]
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"pods/exec", "nodes"} & set(rule["resources"])
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


@every
def test_memory_is_limited_to_what_is_asked_for(folder: Path) -> None:
    for workload in workloads(render(folder)):
        resources = container_of(workload)["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys()
        # A limit of processor time would stop a process in the middle of a step.
        assert "cpu" not in resources["limits"]
        asked, most = (in_bytes(resources[kind]["memory"]) for kind in ("requests", "limits"))
        assert asked <= most
        if component(workload) != "coordinator":
            assert asked == most, "what holds rows or tensors must not be evicted for memory"


@every
def test_writable_paths_are_volumes(folder: Path) -> None:
    objects = render(folder)
    for workload in workloads(objects):
        container = container_of(workload)
        claims = {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", ())}
        volumes = {volume["name"] for volume in pod_of(workload)["spec"]["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounts.values()) == claims | volumes
        values = environment(workload, objects)
        for name, value in values.items():
            if value.startswith("/"):
                assert any(Path(value).is_relative_to(path) for path in mounts), (name, value)
        assert mounts["/tmp"] == "scratch"


@every
def test_tables_fit_into_memory_and_their_log_onto_the_volume(folder: Path) -> None:
    objects = render(folder)
    server = named(objects, "StatefulSet", "gradmesh-parameter-server")
    values = environment(server, objects)
    rows = int(values["GRADMESH_PARAMETER_SERVER_MAX_STORE_BYTES"])
    log = int(values["GRADMESH_PARAMETER_SERVER_SNAPSHOT_BYTES"])
    (claim,) = server["spec"]["volumeClaimTemplates"]

    assert 2 * rows <= in_bytes(container_of(server)["resources"]["limits"]["memory"])
    # The old snapshot, the new one that is being written, and the log meanwhile.
    capacity = in_bytes(claim["spec"]["resources"]["requests"]["storage"])
    assert 2 * rows + max(rows, log) <= capacity


@every
def test_pods_have_time_to_drain(folder: Path) -> None:
    objects = render(folder)
    for workload in workloads(objects):
        drain_s = float(environment(workload, objects)["GRADMESH_PROCESS_DRAIN_S"])
        assert drain_s + 10 <= pod_of(workload)["spec"]["terminationGracePeriodSeconds"]


def test_a_disruption_budget_allows_one_server_to_be_evicted() -> None:
    for folder in ALL:
        objects = render(folder)
        (budget,) = of_kind(objects, "PodDisruptionBudget")
        (server,) = (w for w in workloads(objects) if component(w) == "parameter-server")
        chosen = budget["spec"]["selector"]["matchLabels"].items()
        assert chosen <= pod_of(server)["metadata"]["labels"].items()
        assert 0 < budget["spec"]["maxUnavailable"] < server["spec"]["replicas"]


@every
def test_servers_keep_their_place_and_spread(folder: Path) -> None:
    (server,) = (w for w in workloads(render(folder)) if component(w) == "parameter-server")

    assert server["spec"]["podManagementPolicy"] == "Parallel"
    assert server["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"
    (spread,) = pod_of(server)["spec"]["topologySpreadConstraints"]
    labels = pod_of(server)["metadata"]["labels"]
    assert spread["labelSelector"]["matchLabels"].items() <= labels.items()


def trainer_of(folder: Path) -> Object:
    (trainer,) = (w for w in workloads(render(folder)) if component(w) == "trainer")
    return trainer


@every
def test_trainers_are_an_elastic_job_that_survives_disruptions(folder: Path) -> None:
    job = trainer_of(folder)["spec"]

    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"]
    assert job["backoffLimitPerIndex"] > 0
    assert job["podReplacementPolicy"] == "Failed"
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    first, second = job["podFailurePolicy"]["rules"]
    assert first["action"] == "Ignore"
    assert first["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert (second["action"], second["onExitCodes"]["values"]) == ("FailJob", [2])
    assert second["onExitCodes"]["containerName"] == container_of(trainer_of(folder))["name"]


@every
def test_the_coordinator_waits_for_the_configured_number_of_trainers(folder: Path) -> None:
    objects = render(folder)
    by_role = {component(workload): workload for workload in workloads(objects)}
    values = environment(by_role["coordinator"], objects)
    servers = by_role["parameter-server"]["spec"]["replicas"]
    trainers = by_role["trainer"]["spec"]["completions"]

    assert values["GRADMESH_COORDINATOR_PARAMETER_SERVERS"] == str(servers)
    assert values["GRADMESH_COORDINATOR_TRAINERS"] == str(trainers)
    fewest = int(values.get("GRADMESH_COORDINATOR_MIN_TRAINERS", trainers))
    # If all trainers are needed, one failed index ends the job; otherwise the surplus may fail.
    most_lost = by_role["trainer"]["spec"]["maxFailedIndexes"]
    assert most_lost == trainers - fewest
