import json

from gradmesh.launch.readable import readable


def test_configuration_is_left_out() -> None:
    line = json.dumps({"ts": "", "level": "info", "message": "starting", "pid": 1, "config": {}})

    assert readable(line).endswith("starting pid=1")


def test_lines_that_only_look_like_json_stay() -> None:
    assert readable("{oops") == "{oops"
    assert readable('{"a": 1}') == '{"a": 1}'
