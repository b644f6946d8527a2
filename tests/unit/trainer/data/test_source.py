import gzip
import os
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from gradmesh.trainer.data import DataConfig, Progression, Source
from gradmesh.trainer.data.source import build_vocabulary
from gradmesh.trainer.data.stream import begin, from_plain, share, to_plain
from gradmesh.trainer.errors import DataError
from tests.own_process import peak_bytes

BATCH = 16


def config(file, **options):
    options = {"format": "criteo", "rows": (1000,), "block_kib": 16, "dense": "none"} | options
    return DataConfig(train=(file,), **options)


def numbers(batches):
    """Which samples these are: the first dense feature counts them."""
    return [int(number) for batch in batches for number in batch.dense[:, 0]]


def take(stream, count):
    return [stream.next() for _ in range(count)]


def epoch_of(source, world=1, samples=300):
    """All numbers of one epoch, rank by rank."""
    found = []
    for rank in range(world):
        with source.blocks("train", BATCH) as blocks:
            number = rank
            while (block := blocks.read(0, number)) is not None:
                found += numbers([block.samples])
                number += world
    return found


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_sample_comes_once_an_epoch(criteo, name, world):
    source = Source(config(criteo(name)), seed=1)

    found = epoch_of(source, world)

    assert sorted(found) == list(range(300))
    assert found != list(range(300))
    assert source.blocks("train", BATCH).count() == 300


def test_epochs_have_orders_of_their_own_and_the_seed_decides(criteo):
    file = criteo()

    def order(seed, shuffle=True):
        stream = Source(config(file, shuffle=shuffle), seed).stream(begin(1), BATCH)
        return numbers(take(stream, 75))

    first, same, other = order(1), order(1), order(2)
    assert first == same != other
    # 75 batches of 16 are four epochs of 300.
    assert [sorted(first[i : i + 300]) for i in range(0, 1200, 300)] == [list(range(300))] * 4
    assert first[:300] != first[300:600]
    assert order(1, shuffle=False) == list(range(300)) * 4


@pytest.mark.parametrize("used", [0, 1, 7, 30])
def test_a_stream_resumes_at_its_position(criteo, used):
    source = Source(config(criteo()), seed=3)
    whole = source.stream(begin(1), BATCH)
    take(whole, used)

    resumed = source.stream(from_plain(to_plain(whole.position)), BATCH)

    assert numbers(take(resumed, 40)) == numbers(take(whole, 40))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (4, 3), (3, 1)])
def test_every_sample_comes_once_though_the_number_of_ranks_changes(criteo, before, after):
    source = Source(config(criteo()), seed=3)
    streams = [source.stream([place], 5) for place in begin(before)]
    found = [n for count, stream in enumerate(streams) for n in numbers(take(stream, 3 + count))]
    left = [place for stream in streams for place in stream.position]

    for rank in range(after):
        with source.blocks("train", BATCH) as blocks:
            for place in share(left, rank, after):
                skip = place.taken
                while (block := blocks.read(place.epoch, place.block)) is not None:
                    found += numbers([block.samples])[skip:]
                    skip, place = 0, place.after_block()

    assert sorted(found) == list(range(300))


def test_reader_processes_give_the_same_batches(criteo):
    file = criteo()
    plain = Source(config(file), seed=5).stream(begin(2)[:1], BATCH)
    pooled = Source(config(file, readers=2), seed=5).stream(begin(2)[:1], BATCH)
    with pooled:
        for one, other in zip(take(plain, 30), take(pooled, 30), strict=True):
            np.testing.assert_array_equal(one.dense, other.dense)
            np.testing.assert_array_equal(one.ids, other.ids)
            np.testing.assert_array_equal(one.labels, other.labels)
        assert pooled.position == plain.position
    pooled.close()


def test_reader_processes_also_generate_data():
    generated = DataConfig(shape="criteo", scale=0.001, readers=1, multi_hot=True)
    plain = DataConfig(shape="criteo", scale=0.001, multi_hot=True)
    with Source(generated, 0).stream(begin(2)[1:], 8) as pooled:
        batch = take(pooled, 2)[1]
    same = Source(plain, 0).stream([Progression(0, 3, 4)], 8).next()

    np.testing.assert_array_equal(batch.ids, same.ids)
    np.testing.assert_array_equal(batch.best, same.best)


@pytest.mark.parametrize("readers", [0, 1])
@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_bad_lines_are_counted_and_too_many_are_named(criteo, criteo_lines, readers, name):
    lines = criteo_lines(200)
    lines[57], lines[150] = "1\tnonsense", lines[150] + "\t1"
    file = criteo(name, lines=lines)

    patient = Source(config(file, readers=readers, max_bad_lines=2), 0).stream(begin(1), BATCH)
    strict = Source(config(file, readers=readers, max_bad_lines=1, shuffle=False), 0)
    with patient, strict.stream(begin(1), BATCH) as impatient:
        take(patient, 50)
        assert patient.bad_lines.count == 2
        with pytest.raises(DataError, match=rf"{name}:151: there is a column 41; 40 are expected"):
            take(impatient, 13)


def test_line_numbers_do_not_depend_on_the_order(criteo, criteo_lines):
    lines = criteo_lines(200)
    lines[57] = "bad"
    source = Source(config(criteo(lines=lines), max_bad_lines=0), 9)

    with pytest.raises(DataError, match=r"train.txt:58: "):
        take(source.stream(begin(1), BATCH), 20)


def test_last_share_is_held_out(criteo):
    source = Source(config(criteo(), holdout=0.25, shuffle=False), 0)

    def all_of(split):
        with source.blocks(split, BATCH) as blocks:
            found, number = [], 0
            while (block := blocks.read(0, number)) is not None:
                found += numbers([block.samples])
                number += 1
        return found

    train, test = all_of("train"), all_of("test")
    assert train + test == list(range(300))
    assert 60 < len(test) < 90
    assert all_of("validation") == test


def test_compressed_files_cannot_be_divided(criteo):
    source = Source(config(criteo("train.txt.gz"), holdout=0.1), 0)

    with pytest.raises(DataError, match="is compressed"):
        source.blocks("test", BATCH)


def test_damaged_gzip_is_named(criteo):
    file = criteo("train.txt.gz")
    file.write_bytes(file.read_bytes()[:-200])

    with pytest.raises(DataError, match=r"train.txt.gz.*complete"):
        epoch_of(Source(config(file), 0))


def test_vocabulary_from_files(criteo, tmp_path):
    words = tmp_path / "words.safetensors"
    settings = config(criteo(), ids="vocabulary", vocabulary=words, min_count=3, rows=())
    build_vocabulary(settings).save(words)

    source = Source(settings, 0)

    # 40 values, about 7 times each.
    assert all(30 < rows <= 42 for rows in source.fields.rows)
    batch = source.stream(begin(1), 300).next()
    assert (batch.ids < np.array(source.fields.rows)).all()
    assert 0.05 < (batch.ids == 0).mean() < 0.15


def samples_on_disk():
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((100, 2)).astype(np.float32)
    dense[:, 0] = np.arange(100)
    return dense, rng.integers(0, 50, (100, 3)), (np.arange(100) % 2).astype(np.float32)


def test_npy(tmp_path):
    for name, array in zip(("dense", "ids", "labels"), samples_on_disk(), strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    settings = DataConfig(
        format="npy", train=(tmp_path,), rows=(50,), ids="number", dense="none", block_kib=4
    )

    source = Source(settings, 0)

    assert source.blocks("train", 1).count() == 100
    batches = take(source.stream(begin(1), 10), 10)
    assert sorted(numbers(batches)) == list(range(100))
    assert all((b.labels == b.dense[:, 0] % 2).all() for b in batches)


def test_npy_that_does_not_fit_is_named(tmp_path):
    np.save(tmp_path / "ids.npy", np.zeros((3, 2), np.int64))
    np.save(tmp_path / "labels.npy", np.zeros(4))

    with pytest.raises(DataError, match=r"expected \[4, features\]"):
        Source(DataConfig(format="npy", train=(tmp_path,)), 0)


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    dense, ids, labels = samples_on_disk()
    names = ["red", "green", None]
    table = arrow.table(
        {
            "click": labels,
            "x": dense[:, 0],
            "user": ids[:, 0],
            "colour": [names[i % 3] for i in range(100)],
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    settings = DataConfig(
        format="parquet",
        train=(tmp_path / "*.parquet",),
        label_column="click",
        dense_columns=("x",),
        category_columns=("user", "colour"),
        rows=(100,),
        dense="none",
        shuffle=False,
    )

    source = Source(settings, 0)

    batch = source.stream(begin(1), 100).next()
    assert batch.dense[:, 0].tolist() == list(range(100))
    assert len(set(batch.ids[:, 1].tolist())) == 3
    assert batch.ids[2, 1] == 0
    with pytest.raises(DataError, match="no column z; it has click, colour, user, x"):
        Source(replace(settings, label_column="z"), 0).blocks("train", 1)


def one_group(tmp_path, labels, numbers):
    """A file with a single row group, as pandas writes it."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"label": labels, "x": numbers, "c": np.arange(len(labels)) % 7})
    parquet.write_table(table, tmp_path / "one.parquet")
    return DataConfig(
        format="parquet",
        train=(tmp_path / "one.parquet",),
        dense_columns=("x",),
        category_columns=("c",),
        rows=(10,),
        dense="none",
    )


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_a_single_row_group(tmp_path, world):
    values = np.arange(1000.0)
    source = Source(one_group(tmp_path, values % 2, values), 3)

    found = epoch_of(source, world)

    assert sorted(found) == list(range(1000))
    assert found != list(range(1000))
    assert source.blocks("train", 1).count() == 1000


def test_last_share_of_a_row_group_is_held_out(tmp_path):
    values = np.arange(1000.0)
    source = Source(replace(one_group(tmp_path, values % 2, values), holdout=0.2), 3)

    with source.blocks("test", 1) as blocks:
        held = [number for i in range(4) for number in numbers([blocks.read(0, i).samples])]

    assert held == list(range(800, 1000))
    assert sorted(epoch_of(source)) == list(range(800))


@pytest.mark.parametrize("form", ["parquet", "npy"])
def test_bad_samples_of_arrays_are_counted_and_named(tmp_path, form):
    labels, values = np.arange(200.0) % 2, np.arange(200.0)
    labels[7], values[150], values[9] = 0.5, np.inf, np.nan
    if form == "parquet":
        settings = one_group(tmp_path, labels, values)
        name = "one.parquet"
    else:
        name = tmp_path.name
        for file, array in (("labels", labels), ("dense", values[:, None])):
            np.save(tmp_path / f"{file}.npy", array)
        np.save(tmp_path / "ids.npy", np.arange(200)[:, None] % 7)
        settings = DataConfig(format="npy", train=(tmp_path,), rows=(10,), dense="none")

    stream = Source(settings, 0).stream(begin(1), 198)
    batch = stream.next()

    assert stream.bad_lines.count == 2
    assert np.isfinite(batch.dense).all()
    assert sorted(set(range(200)) - set(numbers([batch]))) == [7, 9, 150]  # 9 is missing, and 0
    strict = Source(replace(settings, max_bad_lines=1, shuffle=False), 0)
    with pytest.raises(DataError, match=f"{name}:151: number 0 is infinite; that is bad line"):
        strict.stream(begin(1), 198).next()
    with pytest.raises(DataError, match=f"{name}:8: the label is not 0 or 1"):
        Source(replace(settings, max_bad_lines=0, shuffle=False), 0).stream(begin(1), 9).next()


def test_arrays_to_predict_need_no_labels(tmp_path):
    dense, ids, _ = samples_on_disk()
    np.save(tmp_path / "dense.npy", dense)
    np.save(tmp_path / "ids.npy", ids)
    settings = DataConfig(format="npy", train=(tmp_path,), rows=(50,), ids="number", dense="none")

    with Source(settings, 0).with_files([tmp_path], labelled=False) as blocks:
        found = numbers([blocks.read(0, 0).samples, blocks.read(0, 1).samples])

    assert found == list(range(100))


@pytest.mark.parametrize("name", ["big.txt", pytest.param("big.txt.gz", marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_file(in_own_process, criteo, criteo_lines, name):
    file = criteo(name, lines=criteo_lines(200) * 200)

    # Of 9 MB of text, or 15 MB of samples, only a few blocks were in memory at a time.
    assert in_own_process(cost_of_reading, file) < 1.5e6


def cost_of_reading(file):
    """Return the peak of memory of many batches."""
    stream = Source(config(file, block_kib=64), 0).stream(begin(1), 256)
    stream.next()  # compiles

    def read() -> None:
        for _ in range(150):
            stream.next()

    return peak_bytes(read)


def test_file_that_is_not_parquet_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    save_file({"a": np.zeros(3)}, tmp_path / "a.parquet")

    with pytest.raises(DataError, match=r"a.parquet is not a Parquet file"):
        Source(DataConfig(format="parquet", train=(tmp_path / "a.parquet",)), 0).blocks("train", 1)


def test_movielens_without_dense_features(tmp_path):
    file = tmp_path / "ratings.csv"
    rows = [f"{i % 7},{i % 11},{i % 5 + 0.5},9" for i in range(100)]
    file.write_text("\n".join(["userId,movieId,rating,timestamp", *rows]))

    source = Source(DataConfig(format="movielens", train=(file,), rows=(64,)), 0)

    batch = source.stream(begin(1), 100).next()
    assert batch.dense.shape == (100, 0)
    assert batch.labels.sum() == 20
    assert [len(set(column)) for column in batch.ids.T.tolist()] == [7, 11]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"train": ("gone.txt",)}, "no file matches gone.txt"),
        ({"train": ("*.none",)}, "no file matches"),
        ({"rows": (10, 10)}, "data.rows has 2 numbers, but the data 26"),
        ({"rows": (1,)}, "at least 2 each"),
    ],
)
def test_wrong_settings_name_the_remedy(criteo, options, text):
    with pytest.raises(DataError, match=text):
        Source(DataConfig(**({"format": "criteo", "train": (criteo(),)} | options)), 0).blocks(
            "train", 1
        )


def test_a_share_without_samples_is_an_error(criteo):
    source = Source(config(criteo(count=2), block_kib=4096), 0)

    with pytest.raises(DataError, match="start fewer trainers"):
        source.stream(begin(2)[1:], 4).next()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_line_without_end_is_a_data_error(tmp_path, name):
    file = tmp_path / name
    line = bytes(10 << 20)
    file.write_bytes(gzip.compress(line) if name.endswith(".gz") else line)

    with pytest.raises(DataError, match=f"{name}.*a line has more than"):
        epoch_of(Source(config(file), 0))


def test_a_pipe_is_no_data_file(tmp_path):
    os.mkfifo(tmp_path / "a.txt")

    with pytest.raises(DataError, match="is not a file"):
        Source(config(tmp_path / "a.txt"), 0)
