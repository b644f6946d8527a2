import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_worked_op_is_the_one_in_the_tree_and_short() -> None:
    page = (ROOT / "docs" / "engine.md").read_text()
    file = (ROOT / "engine" / "autograd" / "ops" / "softplus.py").read_text()

    (shown,) = re.findall(r"```python\n(.*?)```", page, re.S)

    assert shown == file
    assert len(file.splitlines()) < 40
