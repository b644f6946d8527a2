import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, final

import pytest

from gradmesh.sdk.process.config import Sections, load
from gradmesh.sdk.process.network import TransportConfig, listening
from gradmesh.sdk.process.setting import ConfigError, Problem, Section, setting


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OvenConfig(Section):
    """A section for the tests."""

    section: ClassVar[str] = "oven"
    flag_prefix: ClassVar[str] = "oven-"

    heat: int = setting(180, "Degrees.", minimum=0, maximum=300)
    minutes: float = setting(10.0, "Minutes.", minimum=0.5)
    fan: bool = setting(False, "Fan.")
    mode: Literal["top", "bottom"] = setting("top", "Mode.")
    recipe: Path | None = setting(None, "Recipe.")
    layers: tuple[int, ...] = setting((1, 2), "Layers.", minimum=1)
    listen: str = setting("127.0.0.1:0", "Address.", check=listening)

    def problems(self) -> Iterable[Problem]:
        if self.fan and self.mode == "bottom":
            yield Problem("fan", "does not go with mode = bottom; turn one off")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BakerConfig(Section):
    """A section that is checked against the other."""

    section: ClassVar[str] = "baker"

    courage: int = setting(100, "Hottest oven the baker goes near.")

    def problems_with(self, sections: Sections) -> Iterable[Problem]:
        if sections[OvenConfig].heat > self.courage:
            yield Problem("courage", "is too small for oven.heat; lower oven.heat")


def toml(folder: Path, text: str) -> Path:
    file = folder / "gradmesh.toml"
    file.write_text(text)
    return file


def problems_of(**sources: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load([OvenConfig], **sources)  # type: ignore[arg-type]
    return [str(problem) for problem in caught.value.problems]


def test_defaults_hold_when_nothing_is_configured() -> None:
    loaded = load([OvenConfig])

    assert loaded[OvenConfig] == OvenConfig()
    assert loaded.sources == {}


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = toml(tmp_path, "[oven]\nheat = 1\nminutes = 1\nfan = true\n")
    environment = {"GRADMESH_OVEN_HEAT": "2", "GRADMESH_OVEN_MINUTES": "2"}

    oven = load([OvenConfig], flags={"oven.heat": "3"}, environment=environment, file=file)[
        OvenConfig
    ]

    assert (oven.heat, oven.minutes, oven.fan, oven.mode) == (3, 2.0, True, "top")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("heat", "1_00", 100),
        ("minutes", "1e1", 10.0),
        ("fan", "ON", True),
        ("fan", "0", False),
        ("mode", "bottom", "bottom"),
        ("recipe", "a/b", Path("a/b")),
        ("recipe", "none", None),
        ("layers", "4,5,6", (4, 5, 6)),
        ("layers", "", ()),
        ("listen", "[::1]:80", "[::1]:80"),
    ],
)
def test_text_becomes_the_declared_type(key: str, text: str, value: object) -> None:
    loaded = load([OvenConfig], environment={f"GRADMESH_OVEN_{key.upper()}": text})

    assert getattr(loaded[OvenConfig], key) == value


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("heat", "hot", "expected a whole number, got 'hot'"),
        ("heat", "301", "expected at most 300, got 301"),
        ("heat", "-1", "expected at least 0, got -1"),
        ("minutes", "nan", "expected a number, got 'nan'"),
        ("fan", "maybe", "expected true or false, got 'maybe'"),
        ("mode", "botom", "expected one of top, bottom, got 'botom'; did you mean 'bottom'?"),
        ("layers", "1,x", "expected a whole number, got 'x'"),
        ("layers", "1,0", "expected at least 1, got 0"),
        ("listen", "nowhere", "expected host:port such as '127.0.0.1:7070', got 'nowhere'"),
        ("listen", "h:70000", "expected host:port such as '127.0.0.1:7070', got 'h:70000'"),
    ],
)
def test_bad_value_is_named_with_its_source(key: str, text: str, expected: str) -> None:
    variable = f"GRADMESH_OVEN_{key.upper()}"

    problems = problems_of(environment={variable: text})

    assert problems == [f"oven.{key}: {expected} (environment {variable})"]


@pytest.mark.parametrize("line", ["heat = true", "fan = 1", "layers = 3", "mode = 1"])
def test_toml_value_of_the_wrong_type_is_refused(tmp_path: Path, line: str) -> None:
    problems = problems_of(file=toml(tmp_path, f"[oven]\n{line}\n"))

    assert len(problems) == 1
    assert problems[0].startswith(f"oven.{line.split()[0]}: expected")


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    file = toml(tmp_path, "[oven]\nheet = 1\nminutes = 0\n[ofen]\n")
    environment = {"GRADMESH_OVEN_FANN": "1", "GRADMESH_OVN_HEAT": "1"}

    problems = problems_of(file=file, environment=environment, flags={"oven.mode": "left"})

    assert problems == [
        f"oven.heet: unknown setting; did you mean 'heat'? (file {file})",
        f"[ofen]: unknown section; did you mean 'oven'? (file {file})",
        "GRADMESH_OVEN_FANN: unknown variable; did you mean 'GRADMESH_OVEN_FAN'? (environment)",
        "GRADMESH_OVN_HEAT: unknown variable; did you mean 'GRADMESH_OVEN_HEAT'? (environment)",
        f"oven.minutes: expected at least 0.5, got 0 (file {file})",
        "oven.mode: expected one of top, bottom, got 'left' (flag --oven-mode)",
    ]


def test_fields_are_checked_against_each_other() -> None:
    problems = problems_of(flags={"oven.fan": True, "oven.mode": "bottom"})

    assert problems == ["oven.fan: does not go with mode = bottom; turn one off (flag --oven-fan)"]


def test_sections_are_checked_against_each_other() -> None:
    with pytest.raises(ConfigError, match=r"baker\.courage: is too small .* \(default\)"):
        load([OvenConfig, BakerConfig])


def test_known_sections_that_are_not_wanted_are_left_alone(tmp_path: Path) -> None:
    file = toml(tmp_path, "[baker]\nanything = 1\n")
    environment = {"GRADMESH_BAKER_ANYTHING": "1"}

    loaded = load([OvenConfig], file=file, environment=environment, known=["baker"])

    assert loaded[OvenConfig] == OvenConfig()
    assert BakerConfig not in loaded


def test_variables_of_others_are_left_alone() -> None:
    links = {
        "PATH": "/bin",
        "GRADMESH_CONFIG": "x.toml",
        "GRADMESH_OVEN_SERVICE_HOST": "10.0.0.1",
        "GRADMESH_OVEN_SERVICE_PORT_GRPC": "7070",
        "GRADMESH_OVEN_PORT": "tcp://10.0.0.1:7070",
        "GRADMESH_OVEN_PORT_7070_TCP_ADDR": "10.0.0.1",
    }

    assert load([OvenConfig], environment=links)[OvenConfig] == OvenConfig()


def test_setting_that_looks_like_a_link_is_a_setting() -> None:
    environment = {"GRADMESH_TRANSPORT_LANE_PORT": "7171"}

    assert load([TransportConfig], environment=environment)[TransportConfig].lane_port == 7171


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    file = toml(tmp_path, "[oven]\nrecipe = 'cake.txt'\n")

    assert load([OvenConfig], file=file)[OvenConfig].recipe == tmp_path / "cake.txt"


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"[oven", "is not valid TOML"), (b"\xff", "is not UTF-8 text"), (None, "cannot be read")],
)
def test_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    file = tmp_path / "gradmesh.toml"
    if content is not None:
        file.write_bytes(content)

    (problem,) = problems_of(file=file)

    assert problem.startswith(f"file {file}: {expected}")


def test_effective_configuration_is_one_json_line(tmp_path: Path) -> None:
    loaded = load([OvenConfig], flags={"oven.recipe": "a/b"})

    line = loaded.as_json()

    assert "\n" not in line
    assert json.loads(line)["oven"]["recipe"] == "a/b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"heat = {'9' * 5000}", "is not valid TOML"),
        (f"heat = 0x{'f' * 5000}", "expected a number of 64 bits"),
        (f"heat = {'9' * 400}", "expected a number of 64 bits"),
        (f"minutes = {'9' * 400}", "expected a number, got 999"),
        (f'mode = "{"x" * 50_000}"', "expected one of top, bottom, got 'xxx"),
    ],
)
def test_huge_values_are_short_problems(tmp_path: Path, text: str, expected: str) -> None:
    (problem,) = problems_of(file=toml(tmp_path, f"[oven]\n{text}\n"))

    assert expected in problem
    assert len(problem) < 1000
