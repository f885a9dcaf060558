"""From the names that users give to those in generated code: identifiers, and what may stand in a comment."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tvmconvgrad.spec.values import show

_MOST = 80  # characters of an identifier's own part
# Whoever has the bundle's folder among those of headers or libraries would get it in place of one of the system's.
_HEADERS = (
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic "
    "stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype "
    "dirent dlfcn fcntl glob grp netdb poll pthread pwd regex sched search semaphore spawn strings syslog termios "
    "unistd utime wordexp aio cpio elf endian features link malloc memory values alloca error err"
)
_LIBRARIES = "c m dl rt gcc gcc_s stdc util crypt resolv nsl anl asan tsan ubsan lsan gomp atomic quadmath ld"
_KEYWORDS = (
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "alignas alignof and and_eq asm bitand bitor bool catch char8_t char16_t char32_t class compl concept consteval "
    "constexpr constinit const_cast co_await co_return co_yield decltype delete dynamic_cast explicit export false "
    "friend mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "reinterpret_cast requires static_assert static_cast template this thread_local throw true try typeid typename "
    "typeof typeof_unqual using virtual wchar_t xor xor_eq"
)
TAKEN = frozenset(f"{_HEADERS} {_LIBRARIES} {_KEYWORDS}".split())


def check_bundle_name(name: object) -> str:
    """Return a bundle's name, which names files, a library, and the beginning of everything in C.

    Raises TypeError or ValueError, which say what is allowed.
    """
    if not isinstance(name, str):
        raise TypeError(f"name: got {show(name)} of type {type(name).__name__}, expected a string")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name, re.ASCII) or len(name) > _MOST:
        rule = f"a letter, then letters, digits and _, all lower case, at most {_MOST}"
        raise ValueError(f"name: {show(name)} cannot name a library and its functions, expected {rule}")
    if name in TAKEN:
        raise ValueError(f"name: {name!r} is a word, a header or a library of C or C++, expected another one")
    return name


def bundle_name(text: str) -> str:
    """A name made of whatever text; one that is taken gets an end."""
    word = identifier(text, "kernels")
    return f"{word}_kernels" if word in TAKEN else word


def identifier(text: str, default: str = "layer") -> str:
    """The letters, digits and underscores of a text, in lower case, with a letter first."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    joined = "_".join(words)[:_MOST].rstrip("_")
    if not joined:
        return default
    return joined if joined[0].isalpha() else f"{default}_{joined}"


def unique(names: Iterable[str]) -> list[str]:
    """The names in their order; where one comes again, a number is put behind it."""
    seen: set[str] = set()
    found = []
    for name in names:
        number, candidate = 1, name
        while candidate in seen:
            number += 1
            candidate = f"{name}_{number}"
        seen.add(candidate)
        found.append(candidate)
    return found


def comment(text: object) -> str:
    """A text as it may stand in a comment of C, CMake or pkg-config: on one line, and nothing that ends it."""
    # Not *, whose neighbour might be a slash; not \ and ?, which join lines and make trigraphs; not $.
    return re.sub(r"[^A-Za-z0-9 .,:;=+()\[\]{}'<>/_-]", "_", str(text))
