"""The cache of compiled kernels on disk, safe for processes that compile at the same time.

numba keeps one index per function and numbers its data files. Two processes that compile different
signatures at once can take the same number: then the index leads to the code of another signature,
in every later process, too. Here a file is named after its contents, so there is no index.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from numba.core.caching import FunctionCache, IndexDataCacheFile


@final
class KernelFiles(IndexDataCacheFile):
    """The files of one function: one per signature, for one version of source and numba.

    Args:
        folder: Where they are.
        function: Name of the function, as a file name.
        stamp: Identifies the version of its source.
    """

    def __init__(self, folder: str, function: str, stamp: Any) -> None:
        super().__init__(folder, function, stamp)  # type: ignore[no-untyped-call]
        self._folder = Path(folder)
        self._function = function
        self._prefix = f"{function}.{_digest((self._version, stamp))}"

    def save(self, key: Any, data: Any) -> None:
        """Store the code of a signature, and remove the code of other versions."""
        for file in self._folder.glob(f"{self._function}.*.nbc"):
            if not file.name.startswith(f"{self._prefix}."):
                file.unlink(missing_ok=True)
        self._save_data(self._name(key), data)  # type: ignore[no-untyped-call]

    def load(self, key: Any) -> Any:
        """Return the code of a signature; None if there is none."""
        try:
            return self._load_data(self._name(key))  # type: ignore[no-untyped-call]
        except OSError:
            return None

    def flush(self) -> None:
        """Remove the code of all signatures."""
        for file in self._folder.glob(f"{self._prefix}.*.nbc"):
            file.unlink(missing_ok=True)

    def _name(self, key: Any) -> str:
        return f"{self._prefix}.{_digest(key)}.nbc"


def _digest(value: Any) -> str:
    """Return a short name of a value whose text is the same in every process."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@final
class KernelCache(FunctionCache):
    """numba's cache of one function, over `KernelFiles`.

    Args:
        function: The function.

    Raises:
        RuntimeError: No folder can be written to.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file = KernelFiles(
            self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )
