"""Publishes ``relax.transform.DisCoFuse`` when ``import tvm`` loads its entry points.

``import tvm`` calls :func:`publish` before tvm itself is complete, so this package imports nothing
of DisCoFuse until the pass is really asked for; otherwise the import would be circular.
"""

from __future__ import annotations

from typing import Any

_PASS = "DisCoFuse"


def publish() -> None:
    """Make the pass available as ``tvm.relax.transform.DisCoFuse``, imported when it is used."""
    import tvm.relax.transform as transform

    if _PASS in vars(transform):
        return
    before = vars(transform).get("__getattr__")

    def get(name: str) -> Any:
        if name == _PASS:
            from disco_fuse.transform import DisCoFuse

            setattr(transform, _PASS, DisCoFuse)
            return DisCoFuse
        if before is not None:
            return before(name)
        raise AttributeError(f"module {transform.__name__!r} has no attribute {name!r}")

    setattr(transform, "__getattr__", get)  # noqa: B010 - of a module
    setattr(transform, "__dir__", lambda: sorted({*vars(transform), _PASS}))  # noqa: B010
