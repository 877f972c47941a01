"""What compilers made, kept on disk: an entry for every distinct input of a compiler.

    compile(input)                                <folder>/<2 digits>/<62 digits>
    --------------                                -------------------------------
    key = hash(input, compiler, its options)  --> magic | SHA-256 of the rest | what came out

Whoever makes an entry writes it beside its place and renames it, so that another process sees it
whole or not at all; two that make the same one write the same bytes. Every entry is checked when
it is read. Beyond the limit, those that were not used for the longest time are deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

_MAGIC = b"disco_fuse cache 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_TEMPORARY = ".tmp"
_STALE_S = 3600.0
"""A file that is still not renamed after this time was left by a process that died."""


def user_cache_folder() -> Path:
    """Where the user's programs keep what they can make again, for this project.

    ``disco_fuse`` in the folder that the XDG Base Directory Specification names: the variable
    ``XDG_CACHE_HOME`` if it is set to an absolute path, else ``~/.cache``.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "disco_fuse"


@dataclass(frozen=True, kw_only=True)
class KernelCache:
    """A folder of compiled kernels, for any number of processes at once.

    A folder that cannot be written makes nothing fail: what is built is then not kept, and a
    warning says so.

    Attributes
    ----------
    folder : Path, optional
        Made on first use; None stands for ``kernels`` in :func:`user_cache_folder`.
    max_bytes : int
        Size of all entries that :meth:`store` leaves; 1 GiB is some 50,000 kernels.
    """

    folder: Path | None = None
    max_bytes: int = 2**30

    def __post_init__(self) -> None:
        if self.max_bytes < 0:
            raise ValueError(f"max_bytes is {self.max_bytes}; allowed: from 0")

    @property
    def path(self) -> Path:
        """The folder in use."""
        return user_cache_folder() / "kernels" if self.folder is None else self.folder

    def load(self, key: str) -> bytes | None:
        """The entry of a key of 64 hexadecimal digits; None where there is none, or it is damaged.

        A damaged entry is deleted, and a warning names it.
        """
        file = self._file(key)
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("cannot read %s, it is built anew: %s", file, error.strerror)
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        content = data[start:]
        if data[:start] != _header(content):
            logger.warning("%s is damaged, it is built anew", file)
            with contextlib.suppress(OSError):
                file.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(file)  # it was used just now
        return content

    def store(self, entries: Iterable[tuple[str, bytes]]) -> bool:
        """Keep new entries, then delete old ones beyond the limit.

        Returns
        -------
        bool
            False, after a warning, where the folder cannot be written.
        """
        try:
            for key, content in entries:
                self._write(self._file(key), content)
        except OSError as error:
            logger.warning(
                "cannot keep kernels in %s: %s; they are built anew next time",
                self.path,
                error.strerror,
            )
            return False
        self._prune()
        return True

    def _file(self, key: str) -> Path:
        return self.path / key[:2] / key[2:]

    def _write(self, file: Path, content: bytes) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=_TEMPORARY, dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(_header(content))
                stream.write(content)
            os.replace(name, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _prune(self) -> None:
        """Delete what is beyond the limit; another process may do the same just now."""
        entries = []
        now = time.time()
        for file in self.path.glob("??/*"):
            with contextlib.suppress(OSError):
                status = file.stat()
                if file.suffix != _TEMPORARY:
                    entries.append((status.st_mtime_ns, str(file), status.st_size))
                elif now - status.st_mtime > _STALE_S:
                    file.unlink()
        excess = sum(size for _, _, size in entries) - self.max_bytes
        for _, name, size in sorted(entries):
            if excess <= 0:
                return
            with contextlib.suppress(OSError):
                os.unlink(name)
            excess -= size


USER_CACHE = KernelCache()
"""The default of everything that compiles kernels to keep them."""


def _header(content: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(content).digest()
