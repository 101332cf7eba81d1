"""Data sets that can be made: from original files, from packages, generated."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.data import open_source
from edl_allreduce.data.datasets import DATASETS, read_idx
from edl_allreduce.errors import DataError

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gen_dataset.sh"


def idx(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist_files(tmp_path):
    random = np.random.default_rng(0)
    arrays = {}
    for prefix, count in (("train", 20), ("t10k", 7)):
        arrays[prefix] = random.integers(0, 256, (count, 28, 28)), random.integers(0, 10, count)
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(arrays[prefix][0])))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(arrays[prefix][1]))
    return tmp_path, arrays


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_original_files_are_read_packed_or_not(mnist_files, name):
    directory, arrays = mnist_files
    splits = DATASETS[name].load(directory)
    np.testing.assert_array_equal(splits.train["image"], arrays["train"][0])
    np.testing.assert_array_equal(splits.test["label"], arrays["t10k"][1])
    assert splits.train["image"].dtype == np.uint8
    assert splits.train["label"].dtype == np.int64


def test_copies_of_keras_are_found(mnist_files, tmp_path, monkeypatch):
    directory, arrays = mnist_files
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    place = tmp_path / "keras" / "datasets"
    place.mkdir(parents=True)
    with pytest.raises(DataError, match=r"--source_dir, or fetch Keras' copy with: python -c"):
        DATASETS["mnist"].load(None)
    (x, y), (tx, ty) = arrays["train"], arrays["t10k"]
    np.savez(place / "mnist.npz", x_train=x, y_train=y, x_test=tx, y_test=ty)
    np.testing.assert_array_equal(DATASETS["mnist"].load(None).train["image"], x)
    (place / "fashion-mnist").mkdir()
    for file in directory.glob("*ubyte*"):
        (place / "fashion-mnist" / file.name).write_bytes(file.read_bytes())
    np.testing.assert_array_equal(DATASETS["fashion_mnist"].load(None).test["image"], tx)


def gen_dataset(*words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *map(str, words)], env={**os.environ, **environ}, capture_output=True, text=True
    )


@pytest.mark.programs
def test_the_script_makes_every_set_of_the_examples_from_original_files(mnist_files, tmp_path):
    done = gen_dataset(tmp_path / "data", mnist_files[0], FRACTION="0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [
        "census", "digits", "frappe", "heart", "mnist"
    ]  # fmt: skip
    assert len(open_source(str(tmp_path / "data" / "mnist" / "train"))) == 10
    assert len(open_source(str(tmp_path / "data" / "mnist" / "test"))) == 4


@pytest.mark.training
def test_without_network_the_script_says_what_to_copy(tmp_path):
    nobody = "http://127.0.0.1:9"
    done = gen_dataset(tmp_path / "data", KERAS_HOME=str(tmp_path), http_proxy=nobody, https_proxy=nobody)
    assert done.returncode == 1
    assert "could not fetch MNIST: " in done.stderr and "train-images-idx3-ubyte.gz" in done.stderr
    assert f"{SCRIPT} {tmp_path / 'data'} DIRECTORY" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "begins with 000803"),
        (b"\0\0\x08\x01" + bytes(8), "begins with 000803, this one with 00000801"),
        (idx(np.zeros((2, 3, 3)))[:-1], "promises"),
        (gzip.compress(idx(np.zeros((2, 3, 3))))[:-9], "cannot be decompressed"),
    ],
    ids=["empty", "other-dimensions", "short", "short-gzip"],
)
def test_damaged_original_files_are_named(tmp_path, data, message):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(DataError, match=rf"/x: .*{message}"):
        read_idx(tmp_path / "x", 3)


def cifar_files() -> tuple[dict[str, bytes], np.ndarray]:
    random = np.random.default_rng(1)
    names = [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]
    rows = random.integers(0, 256, (6, 2, 3073), dtype=np.uint8)
    rows[:, :, 0] %= 10
    return {name: rows[n].tobytes() for n, name in enumerate(names)}, rows


@pytest.mark.parametrize("how", ["files", "directory", "archive"])
def test_cifar_is_read_from_its_binary_version(tmp_path, how):
    files, rows = cifar_files()
    inner = tmp_path / "cifar-10-batches-bin" if how == "directory" else tmp_path
    inner.mkdir(exist_ok=True)
    if how == "archive":
        with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as tar:
            for name, data in files.items():
                info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    else:
        for name, data in files.items():
            (inner / name).write_bytes(data)
    splits = DATASETS["cifar10"].load(tmp_path)
    assert splits.train["image"].shape == (10, 32, 32, 3)
    assert splits.test["image"].shape == (2, 32, 32, 3)
    assert splits.train["label"].tolist() == rows[:5, :, 0].reshape(-1).tolist()
    # Red comes first in the file; pixel (row 1, column 2) is byte 34 of each colour.
    assert splits.train["image"][0, 1, 2].tolist() == [rows[0, 0, 1 + 34 + 1024 * c] for c in range(3)]


def test_keras_copy_of_cifar_is_read_although_it_is_made_of_pickles(tmp_path, monkeypatch):
    files, _ = cifar_files()
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    place = tmp_path / "datasets" / "cifar-10-batches-py-target" / "cifar-10-batches-py"
    place.mkdir(parents=True)
    with pytest.raises(DataError, match=r"no CIFAR-10 there.*keras\.datasets\.cifar10\.load_data"):
        DATASETS["cifar10"].load(None)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        rows = np.frombuffer(data, np.uint8).reshape(-1, 3073)
        batch = {b"labels": rows[:, 0].tolist(), b"data": rows[:, 1:]}
        (place / name.removesuffix(".bin")).write_bytes(pickle.dumps(batch))
    expected, got = DATASETS["cifar10"].load(tmp_path), DATASETS["cifar10"].load(None)
    for part in ("train", "test"):
        for column, values in getattr(expected, part).items():
            np.testing.assert_array_equal(getattr(got, part)[column], values)


def test_a_pickle_that_names_anything_but_arrays_is_refused_before_it_runs(tmp_path):
    class Touches:
        def __reduce__(self):
            return Path.touch, (tmp_path / "was here",)

    (tmp_path / "test_batch").touch()
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Touches()))
    with pytest.raises(DataError, match=r"data_batch_1: cannot be read \(it asks for pathlib\.Path\.touch"):
        DATASETS["cifar10"].load(tmp_path)
    assert not (tmp_path / "was here").exists()


def test_a_cut_cifar_file_is_noticed(tmp_path):
    files, _ = cifar_files()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data[:-1] if name == "test_batch.bin" else data)
    with pytest.raises(DataError, match="test files of CIFAR-10 hold 6145 bytes"):
        DATASETS["cifar10"].load(tmp_path)


@pytest.mark.parametrize("name", ["digits", "iris", "breast_cancer", "heart", "census", "frappe"])
def test_small_sets_are_the_same_each_time_and_mixed(name):
    first, second = DATASETS[name].load(None), DATASETS[name].load(None)
    label = "target" if name == "heart" else "label"
    for column, values in first.train.items():
        np.testing.assert_array_equal(values, second.train[column])
        assert len(values) == len(first.train[label])
    assert len(first.train[label]) // 4 in (len(first.test[label]), len(first.test[label]) - 1)
    for part in (first.train, first.test):
        shares = np.bincount(part[label]) / len(part[label])
        assert shares.min() > 0.05


def test_generated_features_stay_in_their_range():
    features = DATASETS["frappe"].load(None).train["feature"]
    assert features.shape[1] == 10
    assert features.min() >= 1
    assert features.max() <= 5382
