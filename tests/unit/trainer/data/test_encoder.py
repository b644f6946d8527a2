import numpy as np
import pytest

from gradmesh.trainer.data.encoder import Encoder, Vocabulary, VocabularyBuilder
from gradmesh.trainer.data.samples import Columns
from gradmesh.trainer.data.text_kernel import MISSING
from gradmesh.trainer.errors import DataError


def columns(tokens, dense=None):
    tokens = np.array(tokens, np.int64)
    dense = np.zeros((len(tokens), 0)) if dense is None else np.array(dense)
    return Columns(np.zeros(len(tokens), np.float32), dense.astype(np.float32), tokens)


def test_missing_is_0_and_hashes_spread_over_the_rest():
    encoder = Encoder(0, [50, 50])
    tokens = np.arange(20_000).reshape(-1, 1).repeat(2, axis=1)
    tokens[0] = MISSING

    ids = encoder.encode(columns(tokens)).ids

    assert ids[0].tolist() == [0, 0]
    for feature in range(2):
        counts = np.bincount(ids[1:, feature], minlength=50)
        assert counts[0] == 0
        assert counts[1:].min() > 300
    # Features are hashed apart from each other.
    assert (ids[1:, 0] != ids[1:, 1]).mean() > 0.9


def test_numbers_are_taken_as_they_are_or_refused():
    encoder = Encoder(0, [5], ids="number")

    assert encoder.encode(columns([[4], [MISSING]])).ids.tolist() == [[4], [0]]
    with pytest.raises(DataError, match=r"the number 5, but data.rows gives it 5"):
        encoder.encode(columns([[5]]))


def test_log_is_zero_for_values_that_are_not_positive():
    dense = [[np.e - 1, -3.0, np.nan]]

    log = Encoder(3, [2], dense="log").encode(columns([[1]], dense)).dense
    plain = Encoder(3, [2], dense="none").encode(columns([[1]], dense)).dense

    np.testing.assert_allclose(log, [[1, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(plain, [[np.e - 1, -3, 0]], rtol=1e-6)


def test_other_features_than_the_settings_say_are_refused():
    with pytest.raises(DataError, match="the settings say 0 and 2"):
        Encoder(0, [5, 5]).encode(columns([[1]]))


def test_vocabulary_orders_by_frequency_and_lumps_the_rare(tmp_path):
    builder = VocabularyBuilder(2)
    builder.add(np.array([[7, 1], [7, 2], [8, 3]]))
    builder.add(np.array([[7, 1], [8, MISSING], [9, MISSING]]))
    made = builder.build(threshold=2)
    made.save(tmp_path / "words.safetensors")

    loaded = Vocabulary.load(tmp_path / "words.safetensors")

    tokens = np.array([[7, 1], [8, 2], [9, MISSING], [77, 99]])
    for vocabulary in (made, loaded):
        assert vocabulary.rows == (4, 3)
        assert vocabulary.ids(tokens).tolist() == [[2, 2], [3, 1], [1, 0], [1, 1]]
    assert loaded.threshold == 2
    assert builder.build(1, most=3).rows == (3, 3)


def test_file_that_is_not_a_vocabulary_is_named(tmp_path):
    (tmp_path / "words").write_text("no")

    with pytest.raises(DataError, match="words is not a vocabulary"):
        Vocabulary.load(tmp_path / "words")
    with pytest.raises(DataError, match="gone is not a vocabulary"):
        Vocabulary.load(tmp_path / "gone")
