"""What a bundle's functions return: the words of the header's enum, in its order, and what they mean."""

from __future__ import annotations

STATUSES = {
    "OK": "done",
    "NULL_POINTER": "a tensor's address is NULL",
    "MISALIGNED": "a tensor is not aligned to its elements, or the workspace not as it must be",
    "OVERLAP": "the result overlaps an input",
    "WORKSPACE_TOO_SMALL": "the workspace is smaller than one thread needs",
    "NO_MEMORY": "there is no memory for the workspace",
    "UNSUPPORTED_CPU": "this CPU has not the instructions of any of the library's targets",
    "BAD_THREADS": "a number of threads that is not from 1 to 4096",
    "FAILED": "the kernel failed: the library is damaged",
}

_NO_MEMORY = list(STATUSES).index("NO_MEMORY")


def explain(status: int) -> Exception:
    """What Python raises for a status that is not OK."""
    texts = list(STATUSES.values())
    if status == _NO_MEMORY:
        return MemoryError("no memory for the workspace of the kernel")
    return RuntimeError(texts[status] if 0 <= status < len(texts) else f"status {status} of the bundle's library")
