import numpy as np
import pytest

from gradmesh.engine.backend import blas


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mkl_multiplies_any_layout(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(130, 70)).astype(dtype)
    b = rng.normal(size=(70, 90)).astype(dtype)
    wide = np.repeat(b, 2, axis=1)[:, ::2]

    try:
        with blas.use_blas("mkl"):
            found = [
                blas.matmul(a, b),
                blas.matmul(a, np.asfortranarray(b)),
                blas.matmul(np.asfortranarray(a), b),
                blas.matmul(a, wide),
            ]
    except blas.BlasUnavailable as error:
        pytest.skip(str(error))

    for product in found:
        np.testing.assert_allclose(product, a @ b, rtol=1e-3 if dtype == "float32" else 1e-9)


def test_unknown_library_is_refused() -> None:
    with pytest.raises(ValueError, match="magic"):
        blas.set_blas("magic")


@pytest.mark.parametrize("shape", [(256, 1677, 512), (33, 65, 17), (2048, 512, 256)])
@pytest.mark.parametrize("library", ["numpy", "mkl"])
def test_products_do_not_depend_on_the_thread_count(
    shape: tuple[int, int, int], library: str
) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=shape[:2]).astype(np.float32)
    b = rng.normal(size=shape[1:]).astype(np.float32)
    bits = []

    try:
        with blas.use_blas(library):
            for threads in (1, 2, 3):
                blas.set_num_threads(threads)
                bits.append((blas.matmul(a, b).tobytes(), blas.matmul(b.T, a.T).tobytes()))
    except blas.BlasUnavailable as error:
        pytest.skip(str(error))
    finally:
        blas.set_num_threads(1)

    assert bits[0] == bits[1] == bits[2]


def test_the_library_below_runs_on_one_thread() -> None:
    a = np.random.default_rng(0).normal(size=(512, 700)).astype(np.float32)

    first = a @ a.T
    blas.pin_blas_threads()

    assert (a @ a.T).tobytes() == first.tobytes()
