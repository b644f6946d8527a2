from click.testing import CliRunner

from gradmesh.cli.bench import bench


def test_both_kinds_are_measured_against_the_floor(tmp_path):
    file = tmp_path / "rows.json"

    result = CliRunner().invoke(
        bench,
        ["table", "--rows", "20000", "--dim", "8", "--seconds", "0.01", "--json", str(file)],
    )

    assert result.exit_code == 0, result.output
    assert "lookup-dense-20000" in result.output
    assert '"workload": "lookup-hash-20000"' in file.read_text()


def test_sizes_that_are_not_numbers_are_refused():
    result = CliRunner().invoke(bench, ["table", "--rows", "many"])

    assert result.exit_code == 2
    assert "whole numbers" in result.output
