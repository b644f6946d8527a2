"""What can go wrong between this machine and a container engine. None of it crosses our wire."""

from typing import ClassVar, final


@final
class DockerMissing(ImportError):
    """The client of the engine is not installed."""

    exit_code: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__(
            "--on docker needs the engine's client; install it with "
            "`pip install 'gradmesh[docker]'`"
        )


@final
class DockerUnreachable(ConnectionError):
    """No engine answers.

    Args:
        why: What the client says.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, why: str) -> None:
        super().__init__(
            f"no container engine answers: {why}; look at `docker info`, start the engine, or set "
            "DOCKER_HOST"
        )


@final
class DockerRejected(RuntimeError):
    """The engine does not do what it was asked for.

    Args:
        action: What was to be done.
        why: What the engine says.
    """

    exit_code: ClassVar[int] = 4

    def __init__(self, action: str, why: str) -> None:
        super().__init__(f"the engine refused to {action}: {why}")


@final
class ImageMissing(LookupError):
    """The engine has no such image.

    Args:
        image: Its name.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, image: str) -> None:
        super().__init__(
            f"the engine has no image {image!r}; build it with `make image`, or name another one "
            "with --image"
        )
