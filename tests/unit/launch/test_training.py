from gradmesh.launch.sections import SECTION_NAMES
from gradmesh.launch.training import read_job_spec


def test_a_job_file_may_contain_every_section(tmp_path):
    file = tmp_path / "job.toml"
    tables = [f"[{name}]" for name in SECTION_NAMES if name != "job"]
    file.write_text("\n".join([*tables, "[job]", "steps = 7"]))

    assert read_job_spec(file, {}).job.steps == 7
