"""The file of measured groups: what comes back, who may write, what is refused."""

from __future__ import annotations

import lzma
import multiprocessing
import sqlite3
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from graphs import DEVICE
from measured_groups import HEADER, measured_groups, op_samples

from disco_fuse.cost_model.standalone import to_text
from disco_fuse.dataset import Header, SampleFile
from disco_fuse.dataset.packed import read_samples
from disco_fuse.dataset.report import describe, error_shares, noise_floor
from disco_fuse.device import DeviceSpec, Efficiency
from disco_fuse.graph import OpClass


def write_half(path: Path, part: int) -> int:
    """What one of two processes does: every second group, one transaction each."""
    groups = measured_groups(40)[part::2]
    with SampleFile(path, HEADER) as file:
        for item in groups:
            file.add([item])
            file.add_ops(op_samples([item]))
    return len(groups)


def test_groups_come_back_as_they_were(tmp_path: Path) -> None:
    groups = measured_groups(12)
    with SampleFile(tmp_path / "s.db", HEADER) as file:
        file.add(groups)
        file.add_ops(op_samples(groups))
        file.add_failure("abc", "model0", "ValueError: no")
    with SampleFile(tmp_path / "s.db") as file:
        assert file.header == HEADER
        found = {item.signature: item for item in file.groups()}
        assert found.keys() == {item.signature for item in groups}
        for item in groups:
            other = found[item.signature]
            assert to_text(other.graph, other.group) == to_text(item.graph, item.group)
            for field in ("model", "family", "sample", "first_us", "again_us", "reference_us"):
                assert getattr(other, field) == getattr(item, field)
        assert file.known() == {"abc", *found}
        assert file.failures() == {"abc": "ValueError: no"}
        assert sum(file.counts().values()) == 12
        times = {name: one.median_us for name, one in op_samples(groups).items()}
        assert file.op_times_us() == times


def test_the_first_measurement_of_a_group_stays(tmp_path: Path) -> None:
    one, two = measured_groups(2)
    again = type(one)(**{**vars(one), "sample": two.sample})
    with SampleFile(tmp_path / "s.db", HEADER) as file:
        file.add([one])
        file.add([again])
        assert [item.sample for item in file.groups()] == [one.sample]


def test_what_was_disturbed_is_judged_by_the_whole_file(tmp_path: Path) -> None:
    references = [3.0, 5.0, 5.0, 5.0, 5.2, 9.0]
    groups = [
        replace(item, reference_us=us, disturbed=us == 5.0)
        for item, us in zip(measured_groups(6), references, strict=True)
    ]
    with SampleFile(tmp_path / "s.db", HEADER) as file:
        assert file.judge(1.1) == 0
        file.add(groups)
        assert file.judge(1.1) == 1
        found = {item.reference_us: item.disturbed for item in file.groups()}
    assert found == {3.0: False, 5.0: False, 5.2: False, 9.0: True}


def test_two_processes_fill_one_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        counts = [pool.submit(write_half, path, part) for part in range(2)]
        assert sum(count.result() for count in counts) == 40
    with SampleFile(path) as file:
        assert len(file.groups()) == 40


def test_devices_with_efficiencies_come_back(tmp_path: Path) -> None:
    shares = (Efficiency(op_class=OpClass.MATMUL, flops=0.5),)
    device = DeviceSpec(**{**vars(DEVICE), "efficiency": shares})
    SampleFile(tmp_path / "s.db", Header(environment="e", device=device)).__exit__(None, None, None)
    with SampleFile(tmp_path / "s.db") as file:
        assert file.header.device == device


def test_other_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with pytest.raises(ValueError, match=r"no file of samples at .*s\.db; 'disco-fuse sample'"):
        SampleFile(path)
    assert not path.exists()
    path.write_bytes(b"nonsense, long enough to be read as a page" * 100)
    content = path.read_bytes()
    with pytest.raises(ValueError, match="is not a file of samples"):
        SampleFile(path, HEADER)
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [0, 2])
def test_other_databases_are_refused(version: int, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "s.db")
    connection.execute("CREATE TABLE other (x)")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.commit()
    connection.close()
    with pytest.raises(ValueError, match=f"has format {version}; this version reads 1"):
        SampleFile(tmp_path / "s.db", HEADER)


def test_samples_of_two_machines_do_not_mix(tmp_path: Path) -> None:
    with SampleFile(tmp_path / "s.db", HEADER):
        pass
    with pytest.raises(ValueError, match="was measured on 'made up', this is 'elsewhere'"):
        SampleFile(tmp_path / "s.db", Header(environment="elsewhere", device=DEVICE))


def test_noise_is_an_error_like_any_other(tmp_path: Path) -> None:
    groups = measured_groups(10)
    noise = noise_floor(groups)
    assert noise == {"within_10": 0.0, "within_14": 1.0, "mape": pytest.approx(0.12)}
    assert error_shares([1.05, 1.2, 0.7, 1.0], [1.0, 1.0, 1.0, 1.0]) == {
        "within_10": 0.5,
        "within_14": 0.5,
        "mape": pytest.approx(0.1375),
    }
    with SampleFile(tmp_path / "s.db", HEADER) as file:
        file.add(groups)
        rows, data = describe(file)
    assert data["num_groups"] == sum(m["num_groups"] for m in data["models"].values()) == 10
    assert [row[0] for row in rows] == ["model", *sorted(data["models"]), "all"]


def test_a_file_compressed_by_xz_is_read_too(tmp_path: Path) -> None:
    with SampleFile(tmp_path / "s.db", HEADER) as file:
        file.add(measured_groups(3))
    packed = tmp_path / "s.db.xz"
    packed.write_bytes(lzma.compress((tmp_path / "s.db").read_bytes()))
    for path in (tmp_path / "s.db", packed):
        with read_samples(path) as file:
            assert len(file.groups()) == 3
    whole = packed.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"no xz at all"):
        packed.write_bytes(damaged)
        with (
            pytest.raises(ValueError, match=r"s\.db\.xz cannot be unpacked by xz"),
            read_samples(packed),
        ):
            pass
    with pytest.raises(ValueError, match=r"no file of samples at"), read_samples(tmp_path / "n.xz"):
        pass
