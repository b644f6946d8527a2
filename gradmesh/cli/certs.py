"""`gradmesh certs`: certificates of an authority of your own."""

from pathlib import Path
from typing import Any

import click

from gradmesh.cli.authority import (
    COORDINATOR,
    ISSUED_ROLES,
    Authority,
    check_library,
    fits,
    load,
    moment,
    view,
)
from gradmesh.cli.display import print_table
from gradmesh.cli.options import json_option
from gradmesh.cli.output import echo, echo_json

# Renewal needs no restart, so a leaked key need not be useful for long.
_LEAF_DAYS = 90
_LONGEST_DAYS = 825

_folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("certs"),
    help="Folder of the authority.  [default: certs]",
)


@click.group()
def certs() -> None:
    """Make and show certificates for TLS, by an authority of your own.

    It is meant for development and small clusters: the authority's key is a file. Keep it where no
    process of the cluster runs.
    """


@certs.command()
@_folder_option
def init(folder: Path) -> int:
    """Make the authority: ca.crt, for every machine, and ca.key, which stays here."""
    authority = Authority(folder)
    authority.make()
    ends = moment(view(load(authority.certificate_file)).ends)
    echo(f"made {authority.certificate_file}, valid until {ends}; keep ca.key secret")
    return 0


@certs.command()
@click.argument("role", type=click.Choice(ISSUED_ROLES))
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="Host name or address by which others reach the process, besides localhost; repeat it.",
)
@click.option(
    "--days",
    type=click.IntRange(1, _LONGEST_DAYS),
    default=_LEAF_DAYS,
    help=f"Days until it expires.  [default: {_LEAF_DAYS}]",
)
@click.option("--renew", is_flag=True, help="Replace the role's certificate and key.")
@_folder_option
def issue(role: str, names: tuple[str, ...], days: int, renew: bool, folder: Path) -> int:
    """Issue the certificate of a role: ROLE.crt and ROLE.key.

    Processes that name the files use a renewed certificate for new connections, without a restart.
    """
    file, key = Authority(folder).issue(role, names, days, renew=renew)
    of = "a coordinator" if role == COORDINATOR else f"role {role}"
    echo(f"made {file} and {key} for {of}, valid until {moment(view(load(file)).ends)}")
    return 0


@certs.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--authority",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Authority that should have signed them.  [default: ca.crt of the folder]",
)
@json_option
@_folder_option
def show(files: tuple[Path, ...], authority: Path | None, as_json: bool, folder: Path) -> int:
    """Show subject, names, role and expiry of certificates, and whether the authority signed them.

    Without FILES it shows those of the folder. The exit code is 1 if one is not valid now, or is
    not the authority's.
    """
    check_library()
    signer_file = authority or folder / "ca.crt"
    signer = load(signer_file) if authority or signer_file.exists() else None
    rows: list[dict[str, Any]] = []
    good = True
    for file in files or sorted(folder.glob("*.crt")):
        certificate = load(file)
        seen = view(certificate)
        signed = None if signer is None else fits(certificate, signer)
        good &= seen.state.startswith("valid") and signed is not False
        rows.append(
            {
                "file": str(file),
                "subject": seen.subject,
                "names": list(seen.names),
                "role": seen.role,
                "expires": moment(seen.ends),
                "state": seen.state,
                "fits_authority": signed,
            }
        )
    if as_json:
        echo_json(rows)
    else:
        print_table(
            ("file", "subject", "names", "role", "expires", "state", "signed by the authority"),
            [
                (
                    *(row[key] for key in ("file", "subject")),
                    " ".join(row["names"]),
                    *(row[key] for key in ("role", "expires", "state")),
                    {True: "yes", False: "NO", None: ""}[row["fits_authority"]],
                )
                for row in rows
            ],
        )
    return 0 if good else 1
