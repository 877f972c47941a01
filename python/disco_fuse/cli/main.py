"""The program, for those who call it from Python.

Its subcommands are one file each; :mod:`disco_fuse_autoload.commands` lists them.
"""

from __future__ import annotations

from disco_fuse_autoload.commands import main

__all__ = ["main"]
