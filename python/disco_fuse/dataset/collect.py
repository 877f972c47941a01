"""Fills a file of samples, model after model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tvm.target import Target

from disco_fuse.dataset.measure import DISTURBED_ABOVE, Reference
from disco_fuse.dataset.sampling import candidates, measure_candidates
from disco_fuse.dataset.store import Header, SampleFile
from disco_fuse.profile.device import measure_device
from disco_fuse.profile.kernels import environment_key
from disco_fuse.tuning.importing import import_step

Progress = Callable[[int, str], None]


def open_samples(path: Path, target: Target) -> SampleFile:
    """The file at ``path`` for measuring on this machine; a new one measures the device first.

    Raises
    ------
    ValueError
        The file is of another environment or format, or no file of samples.
    """
    environment = environment_key(target)
    if path.is_file():
        with SampleFile(path) as file:
            device = file.header.device
    else:
        device = measure_device(target)
    return SampleFile(path, Header(environment=environment, device=device))


def collect(
    file: SampleFile,
    models: Sequence[tuple[str, str]],
    num_groups: int,
    target: Target,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Measure groups until ``file`` holds ``num_groups`` of ``models`` together.

    Each model gets an equal share; what one cannot give falls to those after it. A second call
    goes on where the first one ended, and another process may fill the same file, with a seed of
    its own.

    Parameters
    ----------
    models : sequence of (name, reference)
        See :func:`disco_fuse.workload.load_workload` for references.
    progress : callable, optional
        Called as ``progress(groups there, model)`` before every strategy.

    Returns
    -------
    dict of str to int
        Number of groups per model.

    Raises
    ------
    ValueError
        A reference names no workload.
    UnsupportedOperatorError
        A model uses an operator that is not verified.
    """
    names = [name for name, _ in models]
    reference = Reference(target)

    def there() -> dict[str, int]:
        counts = file.counts()
        return {name: counts.get(name, 0) for name in names}

    for place, (name, workload) in enumerate(models):
        counts = there()
        others = sum(count for other, count in counts.items() if other in names[:place])
        share = -(-(num_groups - others) // (len(models) - place))
        if counts[name] >= share:
            continue
        step = import_step(workload)
        mod, extraction = step.mod, step.extraction
        for found in candidates(mod, extraction, file.known, seed):
            if progress is not None:
                progress(sum(there().values()), name)
            # Another process may have filled the share meanwhile.
            wanted = share - there()[name]
            if wanted <= 0:
                break
            measure_candidates(file, name, mod, extraction, found[:wanted], target, reference)
    file.judge(DISTURBED_ABOVE)
    return there()
