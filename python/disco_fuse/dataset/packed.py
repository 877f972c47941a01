"""Files of samples that are only read, also compressed by xz, as the package's own one is."""

from __future__ import annotations

import lzma
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disco_fuse.cost_model.registry import SHIPPED
from disco_fuse.dataset.store import SampleFile

SHIPPED_SAMPLES = SHIPPED / "samples.db.xz"
"""What the models of the package were trained on."""


@contextmanager
def read_samples(path: Path) -> Iterator[SampleFile]:
    """The file at ``path``; one that ends in ".xz" is unpacked to a temporary file.

    Raises
    ------
    ValueError
        See :class:`~disco_fuse.dataset.store.SampleFile`; or it is not compressed by xz.
    """
    if path.suffix != ".xz" or not path.is_file():
        with SampleFile(path) as file:  # which says that there is none
            yield file
        return
    with tempfile.TemporaryDirectory(prefix="df-") as folder:
        unpacked = Path(folder) / path.stem
        try:
            with lzma.open(path) as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target)
        except (lzma.LZMAError, EOFError) as error:
            raise ValueError(f"{path} cannot be unpacked by xz: {error}") from error
        with SampleFile(unpacked) as file:
            yield file
