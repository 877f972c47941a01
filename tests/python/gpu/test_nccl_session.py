"""Sessions over NCCL from Python, with libraries that stand in for CUDA and NCCL.

They work on the host's memory, which the tests declare to be a GPU's. What orders the streams is
tested in C++ (runtime_device_session_test.cc); nothing here says that a real GPU does the same.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi

from disco_fuse.runtime import Session, loopback, nccl
from disco_fuse.runtime.session import allreduce_start, allreduce_wait

HERE = Path(__file__).parent
DEVICE = 3


def _library(source: str, folder: Path, *options: str) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "a C compiler is needed, as for the build"
    target = folder / (source.removesuffix(".c") + "".join(options).replace("=", "") + ".so")
    command = [compiler, "-shared", "-fPIC", "-O1", *options, str(HERE / source), "-o", str(target)]
    subprocess.run(command, check=True)
    return str(target)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("gpu")
    return {
        "cuda_library": _library("fake_cuda.c", folder),
        "nccl_library": _library("fake_nccl.c", folder),
    }


class OnDevice:
    """An array of the host that says it is in the memory of a GPU."""

    def __init__(self, array: np.ndarray[Any, Any], device: int = DEVICE) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **_options: Any) -> Any:
        capsule = self.array.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = get(capsule, b"dltensor")
        ctypes.c_int32.from_address(tensor + 8).value = 2  # dlpack.h: DLTensor.device, kDLCUDA
        ctypes.c_int32.from_address(tensor + 12).value = self.device
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device


def on_device(array: np.ndarray[Any, Any], device: int = DEVICE) -> Any:
    return tvm_ffi.from_dlpack(OnDevice(array, device))


def test_a_bucket_is_averaged_where_it_is(libraries: dict[str, str]) -> None:
    arrays = [np.ones(3, "float32"), np.ones((2, 2), "float64")]
    communicator = nccl(False, device=DEVICE, **libraries)
    assert (communicator.rank, communicator.world_size, communicator.device) == (0, 1, DEVICE)
    session = Session(communicator)
    tensors = [on_device(array) for array in arrays]
    with session.step():
        allreduce_start(0, *tensors)
        allreduce_wait(0, *tensors)
    for array in arrays:
        np.testing.assert_array_equal(array, np.full_like(array, 10))
    with session.step():
        tvm_ffi.get_global_func("disco_fuse.runtime.allreduce_start_sum")(1, *tensors)
        allreduce_wait(1, *tensors)
    np.testing.assert_array_equal(arrays[1], np.full((2, 2), 1000.0))
    events = session.events()
    assert sorted(int(kind) for kind in events.rows[:, 0]) == [0, 2, 4]  # AllReduce, wait, step
    assert session.copied_bytes() == {}
    communicator.close()


@pytest.mark.parametrize(("dtype", "nccl_type"), [("float16", 6), (ml_dtypes.bfloat16, 9)])
def test_sixteen_bit_types_are_told_apart(
    libraries: dict[str, str], dtype: Any, nccl_type: int
) -> None:
    bits = np.zeros(4, "uint16")
    tensor = on_device(bits.view("float16"))
    if dtype != "float16":  # numpy hands no bfloat16 over: the type is set in the descriptor
        capsule = OnDevice(bits.view("float16")).__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        ctypes.c_uint8.from_address(get(capsule, b"dltensor") + 20).value = 4  # kDLBfloat
        tensor = tvm_ffi.from_dlpack(_Ready(capsule))
    session = Session(nccl(False, device=DEVICE, **libraries))
    with session.step():
        allreduce_start(0, tensor)
        allreduce_wait(0, tensor)
    np.testing.assert_array_equal(bits, np.full(4, nccl_type, "uint16"))


class _Ready:
    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, DEVICE


def test_what_cannot_be_sent_is_refused(libraries: dict[str, str]) -> None:
    session = Session(nccl(False, device=DEVICE, **libraries))
    array = np.ones(4, "float32")
    with session.step():
        with pytest.raises(ValueError, match="number 1; this session moves the memory of GPU 3"):
            allreduce_start(0, on_device(array, device=1))
        with pytest.raises(TypeError, match="int32; allowed: float16"):
            allreduce_start(0, on_device(array.astype("int32")))
        with pytest.raises(ValueError, match="not contiguous"):
            allreduce_start(0, on_device(np.ones((4, 4), "float32")[:, :2]))
        with pytest.raises(ValueError, match="bucket 0: waited for but not started"):
            allreduce_wait(0, on_device(array))


def test_tensors_of_a_gpu_need_a_session_over_nccl() -> None:
    tensor = on_device(np.ones(4, "float32"))
    with (
        Session(loopback()).step(),
        pytest.raises(RuntimeError, match=r"session over NCCL .* disco_fuse\.runtime\.nccl"),
    ):
        allreduce_start(0, tensor)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"timeout_s": 0.0}, ValueError, "timeout_s is 0.0; allowed: a positive"),
        ({"device": -1}, ValueError, "device is -1; allowed: the number of a GPU"),
        ({"device": 4}, RuntimeError, "cuDeviceGet failed: invalid device ordinal"),
        ({"nccl_library": "libnone.so"}, RuntimeError, "rank 0: cannot load libnone.so"),
        ({"cuda_library": "libnone.so"}, RuntimeError, "cannot load libnone.so"),
    ],
)
def test_a_bad_call_is_named(
    libraries: dict[str, str], change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        nccl(False, **({"device": DEVICE} | libraries | change))


def test_an_old_nccl_is_refused(libraries: dict[str, str], tmp_path: Path) -> None:
    old = _library("fake_nccl.c", tmp_path, "-DVERSION=2908")
    with pytest.raises(RuntimeError, match="is NCCL 2908; averages need at least 21000"):
        nccl(False, device=DEVICE, cuda_library=libraries["cuda_library"], nccl_library=old)
