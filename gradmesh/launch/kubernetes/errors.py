"""Errors between this machine and a Kubernetes cluster; none is sent over our wire."""

from typing import ClassVar, final

from gradmesh.base_error import GradmeshError


@final
class KubernetesMissing(ImportError, GradmeshError):
    """The client of the Kubernetes API is not installed."""

    exit_code: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__(
            "--on kubernetes needs the client of its API; install it with "
            "`pip install 'gradmesh[kubernetes]'`"
        )


@final
class KubernetesUnreachable(ConnectionError, GradmeshError):
    """No API server is configured, or it does not answer.

    Args:
        why: The failed action and its result.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why}; look at `kubectl cluster-info`, or choose with --kubeconfig and --context"
        )


@final
class KubernetesForbidden(PermissionError, GradmeshError):
    """The user is not authorised for an action.

    Args:
        action: The requested action.
        message: The API server's message.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, action: str, message: str) -> None:
        super().__init__(
            f"not allowed to {action}: {message}; have the Role gradmesh-viewer (status, logs) or "
            "gradmesh-operator (up, scale, down, train) bound to you, see docs/deploy.md"
        )


@final
class KubernetesRejected(RuntimeError, GradmeshError):
    """The API server refused a request.

    Args:
        action: The requested action.
        status: HTTP status of the answer.
        message: The API server's message.
    """

    exit_code: ClassVar[int] = 4

    def __init__(self, action: str, status: int, message: str) -> None:
        super().__init__(f"the API server refused to {action} ({status}): {message}")
        self.status = status


@final
class NamespaceMissing(LookupError, GradmeshError):
    """The namespace does not exist.

    Args:
        namespace: Its name.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, namespace: str) -> None:
        super().__init__(
            f"there is no namespace {namespace!r}; make it with `kubectl create namespace "
            f"{namespace}`, or choose another with --namespace"
        )


@final
class FilesTooBig(ValueError, GradmeshError):
    """The files for the pods do not fit into a ConfigMap.

    Args:
        size: Bytes of all files.
        most: Capacity of a ConfigMap in bytes.
        biggest: The biggest file, and its size.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, size: int, most: int, biggest: tuple[str, int]) -> None:
        super().__init__(
            f"the job's files have {size:,} bytes, and a ConfigMap holds {most:,}; the biggest is "
            f"{biggest[0]} with {biggest[1]:,}: put data on a volume that the trainers mount and "
            "name it by its absolute path there, or build code into an image and give it with "
            "--image"
        )


@final
class NotOnKubernetes(ValueError, GradmeshError):
    """A request that this launcher does not support.

    Args:
        what: The request, and the alternative.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, what: str) -> None:
        super().__init__(f"--on kubernetes: {what}")
