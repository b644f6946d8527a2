"""Configuration files, variables of the environment and flags, through the real loader."""

from __future__ import annotations

import random
from pathlib import Path

from gradmesh.launch.sections import SECTION_NAMES, cluster_sections
from gradmesh.sdk.process.config import load
from gradmesh.sdk.process.setting import Section, Setting, settings
from tests.fuzz.cases import Case, Cases, judge
from tests.fuzz.mutation import mutate

_VALUES = (
    "",
    "0",
    "-1",
    "1",
    "1e400",
    "nan",
    "9" * 5000,
    "true",
    "none",
    "auto",
    "127.0.0.1:0",
    "[::1]:99999",
    "..",
    "~nobody/x",
    "a\x00b",
    "\ud800",
    ",,,",
    "[/x]\x1b[31m",
    "x" * 20_000,
)
_TOML = (
    *('"%s"', "%s", "'%s'", "[%s]", '["%s"]', "{a = %s}", '"""%s"""'),
    *("[[1]]", "1979-05-27T07:32:00Z", "0x%s", "{}", "[1, 'a', {}]"),
)


class ConfigCases(Cases):
    """Loads all sections from hostile sources; a `ConfigError` or a value is right."""

    def prepare(self) -> None:
        self._settings = {section: tuple(settings(section)) for section in cluster_sections()}
        self._file = self.folder / "cluster.toml"
        self._valid = self._text(random.Random(0), list(self._settings), hostile=False)

    def run(self, chance: random.Random) -> Case:
        # A process reads some of the sections; the file and the environment may have all.
        sections = chance.sample(list(self._settings), chance.choice((1, 1, 2)))
        text = self._text(chance, sections, hostile=chance.random() < 0.8)
        if chance.random() < 0.3:
            text = mutate(chance, text, self._valid)
        self._file.write_bytes(text)
        environment, flags = self._variables(chance, sections), self._flags(chance, sections)
        try:
            loaded = load(
                sections,
                flags=flags,
                environment=environment,
                file=self._file if chance.random() < 0.9 else self.folder / "missing",
                known=SECTION_NAMES,
            )
            loaded.as_json()
        except BaseException as error:
            return judge(error, repr((environment, flags)).encode() + b"\n" + text)
        return Case("loaded")

    def _text(
        self, chance: random.Random, sections: list[type[Section]], *, hostile: bool
    ) -> bytes:
        lines = []
        for section in sections:
            lines.append(f"[{section.section}]")
            for declared in self._settings[section]:
                if hostile and chance.random() < 0.1:
                    form = chance.choice(_TOML)
                    value = chance.choice(_VALUES)
                    text = form.replace("%s", value)
                    lines.append(f"{declared.name} = {text}")
        if hostile and chance.random() < 0.1:
            lines.insert(chance.randrange(len(lines)), chance.choice(("[x]", "a = 1", "[log.x]")))
        return "\n".join(lines).encode(errors="surrogatepass")

    def _some(self, chance: random.Random, sections: list[type[Section]]) -> list[Setting]:
        declared = [one for section in sections for one in self._settings[section]]
        return chance.sample(declared, min(len(declared), chance.choice((0, 0, 1, 3))))

    def _variables(self, chance: random.Random, sections: list[type[Section]]) -> dict[str, str]:
        found = {s.variable: chance.choice(_VALUES) for s in self._some(chance, sections)}
        if chance.random() < 0.1:
            found[f"GRADMESH_{chance.choice(('', 'X', 'LOG_', 'COORDINATOR_PORT'))}"] = "1"
        return found

    def _flags(self, chance: random.Random, sections: list[type[Section]]) -> dict[str, object]:
        values = (*_VALUES, 1, -1, 2**70, 0.5, True, None, Path("x"), ("a", "b"), ["a"])
        return {s.key: chance.choice(values) for s in self._some(chance, sections)}
