"""The `gradmesh` command. Each subcommand is imported only when it is used."""

from gradmesh.cli.error_boundary import run

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after the program's name; those of the process by default.

    Returns:
        The exit code; docs/operations.md lists them.
    """
    # Imported here, so that the error boundary covers failing imports.
    from gradmesh.cli.group import gradmesh

    return run(gradmesh, arguments)
