"""The log by itself: records, segments, torn tails, damage."""

import threading

import ml_dtypes
import numpy as np
import pytest

from gradmesh.protos.errors import StoreFull
from gradmesh.services.parameter_server.log import Log, LogCorrupt, Mode
from gradmesh.services.parameter_server.log.log import read_segment, segments_of
from gradmesh.services.parameter_server.log.record import Pushed, StepCommitted


def open_log(folder, mode=Mode.OS, **options):
    return Log(folder, mode, owner="ps-0", **options)


def write(folder, count, **options):
    log = open_log(folder, **options)
    for number in range(1, count + 1):
        arrays = [np.arange(number), np.full((number, 2), number, np.float32)]
        with log.append_lock:
            assert log.append(Pushed(("w", 1, number), ["t"]), arrays) == number
    log.close()


def read(folder):
    found = segments_of(folder)
    return [
        (number, record, arrays)
        for place, (first, path) in enumerate(found)
        for number, record, arrays in read_segment(path, first, is_last=place == len(found) - 1)
    ]


@pytest.mark.parametrize("mode", [Mode.OS, Mode.FSYNC])
def test_records_come_back_as_they_were_over_several_files(tmp_path, mode):
    write(tmp_path, 20, mode=mode, segment_bytes=200)

    found = read(tmp_path)

    assert len(segments_of(tmp_path)) > 3
    assert [number for number, _, _ in found] == list(range(1, 21))
    assert all(record == Pushed(("w", 1, number), ["t"]) for number, record, _ in found)
    for number, _, (ids, rows) in found:
        np.testing.assert_array_equal(ids, np.arange(number))
        np.testing.assert_array_equal(rows, np.full((number, 2), number, np.float32))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16, np.uint8])
def test_arrays_of_every_type_and_none(tmp_path, dtype):
    log, array = open_log(tmp_path), np.arange(6).reshape(2, 3).astype(dtype)
    with log.append_lock:
        log.append(Pushed(("w", 1, 1), ["t"]), [array, np.empty((0, 3), dtype)])
        log.append(StepCommitted(7))
    log.close()

    (_, _, (whole, empty)), (_, committed, none) = read(tmp_path)

    assert whole.dtype == array.dtype
    assert whole.tobytes() == array.tobytes()
    assert empty.shape == (0, 3)
    assert (committed, none) == (StepCommitted(7), [])


def test_every_cut_of_the_tail_leaves_the_records_before_it(tmp_path):
    write(tmp_path, 3)
    ((_, path),) = segments_of(tmp_path)
    whole = path.read_bytes()
    sizes = []

    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = read(tmp_path)
        sizes.append((len(found), path.stat().st_size))

    assert sorted({count for count, _ in sizes}) == [0, 1, 2]
    assert {size for count, size in sizes if count == 0} == {0}
    assert len({size for _, size in sizes}) == 3  # cut to whole records


def test_space_that_was_never_written_is_cut(tmp_path):
    write(tmp_path, 2)
    ((_, path),) = segments_of(tmp_path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(5000))

    assert len(read(tmp_path)) == 2
    assert path.stat().st_size == size


def test_a_flipped_bit_anywhere_is_found_and_named(tmp_path):
    write(tmp_path, 3)
    ((_, path),) = segments_of(tmp_path)
    whole = path.read_bytes()

    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(LogCorrupt, match=r"record \d at byte \d+"):
            read(tmp_path)


def test_a_file_that_ends_early_is_damage_if_others_follow(tmp_path):
    write(tmp_path, 20, segment_bytes=200)
    path = segments_of(tmp_path)[1][1]
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(LogCorrupt, match=path.name):
        read(tmp_path)


def test_one_flush_serves_many_writers(tmp_path, monkeypatch):
    log, flushed = open_log(tmp_path, Mode.FSYNC), []
    original = log._flush
    monkeypatch.setattr(log, "_flush", lambda: flushed.append(1) or original())

    def work():
        for _ in range(50):
            with log.append_lock:
                number = log.append(StepCommitted(1))
            log.wait(number)
            assert log._durable >= number

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    log.close()

    assert len(read(tmp_path)) == 200
    assert 1 <= len(flushed) <= 200


def test_a_folder_belongs_to_one_server_and_one_process(tmp_path):
    log = open_log(tmp_path)
    with pytest.raises(LogCorrupt, match="another process has it in use"):
        open_log(tmp_path)
    log.close()

    with pytest.raises(LogCorrupt, match="log of 'ps-0', not of 'ps-1'"):
        Log(tmp_path, Mode.OS, owner="ps-1")
    open_log(tmp_path).close()


def test_a_full_disk_refuses_and_leaves_no_half_record(tmp_path, monkeypatch):
    from gradmesh.services.parameter_server.log import log as module

    log = open_log(tmp_path)
    with log.append_lock:
        log.append(StepCommitted(1))
    original = module._write

    def fail(file, parts):
        original(file, [parts[0][:5]])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write", fail)
    with log.append_lock, pytest.raises(StoreFull, match="No space left"):
        log.append(StepCommitted(2))
    monkeypatch.setattr(module, "_write", original)
    with log.append_lock:
        log.append(StepCommitted(3))
    log.close()

    assert [record.step for _, record, _ in read(tmp_path)] == [1, 3]
