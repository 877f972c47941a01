"""Runs the compiled step of a plan on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import ArrayLike, NDArray
from tvm import relax

from disco_fuse.cubin import serve_machine_code
from disco_fuse.errors import WorkloadError
from disco_fuse.frontend.training_step import LEARNING_RATE, RANK
from disco_fuse.kernels.library import load_library
from disco_fuse.needs import GPU, TORCH, check_needs
from disco_fuse.plan import CUBIN_FILE, STEP_FILE, Plan, TensorSpec, load_plan
from disco_fuse.runtime import (
    Communicator,
    EventKind,
    Session,
    StepEvents,
    check_same,
    on_all_ranks,
)


class StepRunner:
    """One loaded plan with its state.

    All ranks create it together: they compare the plan's digest first, then take rank 0's values.

    Parameters
    ----------
    folder : Path
        A plan folder. It is code and is run: load only what you trust.
    communicator : Communicator
    values : mapping of str to ndarray
        Parameters, buffers and optimizer state by name; copied.

    Raises
    ------
    ValueError
        The plan is damaged or differs between ranks; a value is missing or has another shape or
        dtype than the plan says; the machine of a rank lacks what the step needs, which every
        rank then reports; the plan is for GPUs and sends AllReduces, and the communicator is not
        one of NCCL, or the other way round.
    """

    def __init__(
        self, folder: Path, communicator: Communicator, values: Mapping[str, NDArray[Any]]
    ) -> None:
        self.communicator = communicator
        self.plan = on_all_ranks(communicator, lambda: _load(folder), f"the plan in {folder}")
        check_same(communicator, self.plan.digest, f"plan {self.plan.name!r}")
        self._device = _device(self.plan, communicator)
        state = [_checked(values, spec) for spec in self.state]
        communicator.broadcast(state)
        self._set_rank(state, communicator.rank)
        self._state = [tvm.runtime.tensor(value, self._device) for value in state]
        if GPU in self.plan.needs:
            cubin = folder / CUBIN_FILE if self.plan.cubin_sha256 else None
            serve_machine_code(self.plan.needs[GPU], cubin)
        module = tvm.runtime.load_module(str(folder / STEP_FILE))
        self._vm = relax.VirtualMachine(module, self._device)
        self._main = self._vm["main"]
        self._session = Session(communicator)

    @property
    def state(self) -> tuple[TensorSpec, ...]:
        """The tensors of the state: parameters, buffers, optimizer, in the order of the plan."""
        return self.plan.tensors[self.plan.num_inputs :]

    def _set_rank(self, state: Sequence[NDArray[Any]], rank: int) -> None:
        """The one number of the state in which ranks differ."""
        for spec, value in zip(self.state, state, strict=True):
            if spec.name == RANK:
                value[...] = rank

    def step(self, batch: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        """Run one step; the state is updated in place.

        Parameters
        ----------
        batch : sequence of ndarray
            In the order, shapes and dtypes of the first ``plan.num_inputs`` tensors of the plan.

        Returns
        -------
        tuple of ndarray
            The loss, then the model's other outputs.

        Raises
        ------
        WorkloadError
            The batch has other parts.
        """
        inputs = [tvm.runtime.tensor(part, self._device) for part in _parts(self.plan, batch)]
        with self._session.step():
            outputs = self._main(*inputs, *self._state)
        return tuple(output.numpy() for output in outputs)

    def recording_kernels(self) -> AbstractContextManager[None]:
        """Inside, steps record every kernel, which makes them slower by microseconds each."""
        return self._session.recording_kernels(self._vm)

    def events(self) -> StepEvents:
        """The record of the last step."""
        return self._session.events()

    def recorded_step(self, batch: Sequence[NDArray[Any]]) -> StepEvents:
        """Run one step with every kernel recorded."""
        with self.recording_kernels():
            self.step(batch)
        return self.events()

    def exposed_us(self) -> float:
        """Time in which this rank waited for AllReduces in the last step, in microseconds."""
        return self.events().total_us(EventKind.WAIT)

    def copied_bytes(self) -> int:
        """Bytes of gradients that the last step had to copy into their buckets."""
        return sum(self._session.copied_bytes().values())

    def values(self) -> dict[str, NDArray[Any]]:
        """A copy of the present state, by name."""
        return {
            spec.name: value.numpy() for spec, value in zip(self.state, self._state, strict=True)
        }

    def value(self, name: str) -> NDArray[Any]:
        """A copy of one tensor of the state."""
        value: NDArray[Any] = self._state[self._index(name)].numpy()
        return value

    def keep_state(self, kept: Sequence[Any] = ()) -> Sequence[Any]:
        """A copy of the whole state, for :meth:`restore_state`.

        Parameters
        ----------
        kept
            What an earlier call returned, to be overwritten; new memory if empty.
        """
        targets = kept or [
            tvm.runtime.empty(value.shape, value.dtype, self._device) for value in self._state
        ]
        for value, target in zip(self._state, targets, strict=True):
            value.copyto(target)
        return targets

    def restore_state(self, kept: Sequence[Any]) -> None:
        """Overwrite the state by a copy from :meth:`keep_state`."""
        for value, source in zip(self._state, kept, strict=True):
            source.copyto(value)

    def set_value(self, name: str, value: ArrayLike) -> None:
        """Overwrite one tensor of the state, on this rank.

        Parameters
        ----------
        name : str
            As in ``plan.tensors``, for instance "optimizer.learning_rate".
        value : array or number
            Of the tensor's shape; cast to its dtype if that loses no kind (int to float, say).

        Raises
        ------
        ValueError
            There is no such state, or the value has another shape or kind.
        """
        index = self._index(name)
        spec, given = self.state[index], np.asarray(value)
        if given.shape != spec.shape or not np.can_cast(given.dtype, spec.dtype, "same_kind"):
            raise ValueError(
                f"{name!r} is {spec.dtype}{list(spec.shape)}, not {given.dtype}{list(given.shape)}"
            )
        self._state[index].copyfrom(np.array(given, spec.dtype, order="C"))

    def set_learning_rate(self, value: float) -> None:
        """The learning rate of the steps to come; every rank must set the same."""
        self.set_value(LEARNING_RATE, value)

    def _index(self, name: str) -> int:
        index = next((i for i, spec in enumerate(self.state) if spec.name == name), None)
        if index is None:
            raise ValueError(f"no state {name!r}; there are {[spec.name for spec in self.state]}")
        return index


def _device(plan: Plan, communicator: Communicator) -> Any:
    """Where the step runs: on the communicator's GPU if it has one."""
    on_gpu, ordinal = GPU in plan.needs, communicator.device
    if on_gpu and plan.num_allreduces and ordinal is None:
        raise ValueError(
            f"plan {plan.name!r} sends {plan.num_allreduces} AllReduces between GPUs; create the "
            "communicator with disco_fuse.runtime.nccl"
        )
    if ordinal is not None and not on_gpu:
        raise ValueError(f"plan {plan.name!r} is for CPUs, and the communicator is one of NCCL")
    return tvm.cuda(ordinal or 0) if on_gpu else tvm.cpu()


def _load(folder: Path) -> Plan:
    """The plan of a folder, once this machine has all that it needs."""
    plan = load_plan(folder)
    check_needs(plan.needs)
    if plan.needs_blas or TORCH in plan.needs:
        load_library()
    return plan


def _parts(plan: Plan, batch: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The arrays of a batch, if they are what the plan takes."""
    specs = plan.tensors[: plan.num_inputs]
    parts = [np.asarray(x) for x in (batch if isinstance(batch, tuple | list) else [batch])]
    given = [f"{part.dtype}{list(part.shape)}" for part in parts]
    wanted = [f"{spec.dtype}{list(spec.shape)}" for spec in specs]
    if given != wanted:
        named = (f"{spec.name!r} {kind}" for spec, kind in zip(specs, wanted, strict=True))
        raise WorkloadError(
            f"a batch is {len(given)} arrays, {', '.join(given)}; plan {plan.name!r} takes "
            f"{len(wanted)}: {', '.join(named)}"
        )
    return parts


def _checked(values: Mapping[str, NDArray[Any]], spec: Any) -> NDArray[Any]:
    if spec.name not in values:
        raise ValueError(f"no value for {spec.name!r}; there are {sorted(values)}")
    value = np.array(values[spec.name], order="C")  # ascontiguousarray adds an axis to a scalar
    if value.shape != spec.shape or str(value.dtype) != spec.dtype:
        raise ValueError(
            f"{spec.name!r} is {value.dtype}{list(value.shape)}, but the plan wants "
            f"{spec.dtype}{list(spec.shape)}"
        )
    return value
