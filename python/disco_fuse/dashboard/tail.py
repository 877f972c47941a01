"""Reads what is appended to a file, line by line."""

from __future__ import annotations

import os
from pathlib import Path

CHUNK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 22  # the timeline of a search takes a hundredth of that


class Tail:
    """The lines of a file that grows; each is given out once, and only when it is whole.

    Attributes
    ----------
    num_restarts : int
        How often the file was cut or replaced; it is then read from its beginning.
    num_too_long : int
        Lines of more than ``MAX_LINE_BYTES``, which are left out.
    failure : str
        Why the file cannot be read at present; empty if it can.
    changed_at : float
        When the file was last written, in seconds since 1970; 0 before it was seen.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_restarts = 0
        self.num_too_long = 0
        self.failure = ""
        self.changed_at = 0.0
        self._inode = -1
        self._offset = 0
        self._rest = b""
        self._is_too_long = False  # the line that _rest begins

    def read(self) -> list[bytes]:
        """The next lines, of one chunk of the file; none if nothing is new."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            self.failure = error.strerror or str(error)
            return []
        try:
            self.failure = ""
            self._notice_restart(os.fstat(descriptor))
            chunk = os.pread(descriptor, CHUNK_BYTES, self._offset)
        except OSError as error:
            self.failure = error.strerror or str(error)
            return []
        finally:
            os.close(descriptor)
        self._offset += len(chunk)
        return self._lines(chunk)

    def _notice_restart(self, status: os.stat_result) -> None:
        self.changed_at = status.st_mtime
        if status.st_ino == self._inode and status.st_size >= self._offset:
            return
        if self._inode >= 0:
            self.num_restarts += 1
        self._inode, self._offset = status.st_ino, 0
        self._rest, self._is_too_long = b"", False

    def _lines(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes; the beginning of the next one is kept."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = self._rest + lines[0]
            if self._is_too_long:
                del lines[0]
            self._rest, self._is_too_long = b"", False
        if not self._is_too_long:
            self._rest += rest
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest, self._is_too_long = b"", True
            self.num_too_long += 1
        return lines
