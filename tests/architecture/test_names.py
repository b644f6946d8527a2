"""Names say what is inside: one class per name, and no module named after nothing.

A reader who meets `Lease` in a log or a stack trace finds one class. Functions may share a name:
they are read with their module (`snapshot.load`, `manifest.load`).
"""

import ast
from collections import defaultdict
from pathlib import Path

from tests.architecture.test_packages import OWN, PACKAGES, ROOT, sources

VAGUE = {
    # Say nothing about the contents, so everything ends up in them.
    *("util", "utils", "misc", "common", "helpers", "thing", "part", "place", "newest"),
    # Pictures of an idea that has a standard term: spin-wait, registry, owner, all-gather, API.
    *("look", "harvest", "station", "shelf", "gathers", "room", "door"),
}


def public_classes(path: Path) -> list[str]:
    return [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_no_two_modules_define_a_public_class_of_one_name() -> None:
    modules = defaultdict(list)
    for path in sources("gradmesh", *PACKAGES):
        for name in public_classes(path):
            modules[name].append(str(path.relative_to(ROOT)))

    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def test_no_module_has_a_vague_name() -> None:
    """A vague name hides what is inside, and collects what belongs elsewhere.

    A new module gets the name of the idea that it holds; see CONTRIBUTING.md, one word per idea.
    """
    paths = {path.relative_to(ROOT) for path in sources(*OWN)}
    # The folder protos/common is a package of the wire.
    vague = [
        str(path)
        for path in sorted(paths)
        if VAGUE & {path.stem, path.parent.name} and path.parts[:2] != ("protos", "common")
    ]

    assert vague == []
