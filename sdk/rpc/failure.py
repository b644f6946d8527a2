"""What a function raised, on its way to the caller: its text, and its type where it is known."""

import builtins
import traceback
from functools import lru_cache

from gradmesh.protos.errors import CATALOGUE, MeshError, RemoteFailure
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.rpc.registry import Registry

# A long chain of nested calls would bring the traceback of each.
_MAX_TEXT = 64 * 2**10
# Raised where they would be taken for something else: the end of a loop, of a generator.
_MISLEADING = {"StopIteration", "StopAsyncIteration", "GeneratorExit"}


def to_proto(
    error: BaseException, function: str, worker: str, functions: Registry
) -> pb.RemoteError:
    """Return an exception as the wire carries it.

    Whoever registered the function is the caller's colleague: the traceback may leave.
    """
    metadata: dict[str, str] = {}
    if isinstance(error, MeshError):
        kind, text, metadata = error.reason or type(error).__name__, error.message, error.metadata
    else:
        kind = functions.exception_name(type(error)) or type(error).__name__
        text = _text(error)
    trace = "".join(traceback.format_exception(error, limit=-8))
    return pb.RemoteError(
        type=kind,
        message=_fit(text),
        traceback=_fit(trace),
        worker=worker,
        function=function,
        metadata=metadata,
    )


def from_proto(error: pb.RemoteError, functions: Registry) -> Exception:
    """Return the exception to raise here.

    Its type is the one that was raised if it is builtin, registered or of the catalogue, else
    RemoteFailure. Its text names the worker and ends with the remote traceback; the attributes
    `remote_worker`, `remote_type` and `remote_traceback` have the parts.
    """
    text = f"{error.message}\n\n{error.function} on {error.worker}:\n{error.traceback}"
    raised = _make(error, text, functions)
    if raised is None:
        raised = RemoteFailure(
            f"{error.function} on {error.worker} raised {error.type}: {text}",
            function=error.function,
            worker=error.worker,
            type=error.type,
        )
    raised.remote_worker = error.worker  # type: ignore[attr-defined]
    raised.remote_type = error.type  # type: ignore[attr-defined]
    raised.remote_traceback = error.traceback  # type: ignore[attr-defined]
    return raised


def _make(error: pb.RemoteError, text: str, functions: Registry) -> Exception | None:
    known = CATALOGUE.get(error.type)
    if known is not None:
        return known(text, **dict(error.metadata))
    cls = functions.exception(error.type) or _builtin(error.type)
    if cls is None:
        return None
    try:
        made = cls(text)
    except Exception:
        return None  # it wants more than a text
    return made if isinstance(made, cls) else None


@lru_cache(maxsize=128)
def _builtin(name: str) -> type[Exception] | None:
    cls = getattr(builtins, name, None)
    if not isinstance(cls, type) or not issubclass(cls, Exception) or name in _MISLEADING:
        return None
    if issubclass(cls, KeyError):
        # A KeyError shows its text quoted on one line: no traceback could be read.
        return type(name, (cls,), {"__str__": Exception.__str__, "__module__": "builtins"})
    return cls


def _text(error: BaseException) -> str:
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        return error.args[0]
    try:
        return str(error)
    except Exception:
        return f"a {type(error).__name__} without words"


def _fit(text: str) -> str:
    """Return a text that the wire takes."""
    text = text.encode(errors="replace").decode()
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[: _MAX_TEXT // 2]}\n…\n{text[-_MAX_TEXT // 2 :]}"
