"""Publishes ``relax.transform.DisCoFuse`` when ``import tvm`` loads its entry points.

``import tvm`` calls :func:`publish` before tvm itself is complete, so this package imports nothing
of DisCoFuse until the pass is really asked for; otherwise the import would be circular.
"""

from __future__ import annotations

from typing import Any


def DisCoFuse(**options: Any) -> Any:  # noqa: N802 - the name of a TVM pass
    """Joint op fusion and tensor fusion; see :func:`disco_fuse.transform.DisCoFuse`."""
    from disco_fuse import transform

    return transform.DisCoFuse(**options)


def publish() -> None:
    """Make the pass available as ``tvm.relax.transform.DisCoFuse``."""
    import tvm.relax.transform as transform

    if not hasattr(transform, "DisCoFuse"):
        transform.DisCoFuse = DisCoFuse
