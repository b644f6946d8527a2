from gradmesh.services.coordinator.journal import Journal


def test_facts_and_tables_survive_a_restart(tmp_path, say):
    first = Journal(tmp_path / "state" / "deep")
    first.set_fact("round", b"1")
    first.set_fact("round", b"2")
    first.add_table(say.table("b"))
    first.add_table(say.table("a"))
    # No close: a killed process does not close either.

    second = Journal(tmp_path / "state" / "deep")

    assert second.fact("round") == b"2"
    assert second.fact("nothing") == b""
    assert second.tables() == [say.table("a"), say.table("b")]
    first.close()
    second.close()
    second.close()


def test_without_a_folder_nothing_is_kept(say):
    first, second = Journal(None), Journal(None)
    first.add_table(say.table())

    assert second.tables() == []
    first.close()
    second.close()
