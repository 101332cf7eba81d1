"""The data sets that `elasticdl data make` knows: real ones from files, small real ones, generated ones."""

from __future__ import annotations

import io
import math
import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_allreduce import outside
from edl_allreduce.data import cifar_pickle
from edl_allreduce.data.limits import UNPACKED_BYTES, gunzip, whole_file
from edl_allreduce.data.numpy_files import load_archive
from edl_allreduce.data.source import Columns
from edl_allreduce.errors import DataError, SetupError

_SEED = 20200917


@dataclass(frozen=True)
class Splits:
    """Columns of the training and of the test part; uint8 columns are pixels."""

    train: Columns
    test: Columns


@dataclass(frozen=True)
class Dataset:
    """How to get a data set, and one line that says what it is."""

    summary: str
    load: Callable[[Path | None], Splits]


def keras_datasets() -> Path:
    """Where Keras keeps what it downloaded."""
    home = os.environ.get("KERAS_HOME")
    return (Path(home) if home else Path("~/.keras").expanduser()) / "datasets"


# --- images from their original files -----------------------------------------------------------------


def _mnist(source: Path | None) -> Splits:
    keras = 'or fetch Keras\' copy with: python -c "import keras; keras.datasets.mnist.load_data()"'
    directory = source or keras_datasets()
    archive = directory / "mnist.npz"
    if archive.exists() and _find_idx(directory, "train-images-idx3-ubyte") is None:
        arrays = load_archive(archive, ("x_train", "y_train", "x_test", "y_test"))
        return Splits(
            *(_labelled(archive, arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
        )
    return _idx_splits(directory, keras)


def _fashion_mnist(source: Path | None) -> Splits:
    keras = 'or fetch Keras\' copy with: python -c "import keras; keras.datasets.fashion_mnist.load_data()"'
    return _idx_splits(source or keras_datasets() / "fashion-mnist", keras)


def _idx_splits(directory: Path, or_else: str) -> Splits:
    parts = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        arrays = []
        for stem, dimensions in ((f"{prefix}-images-idx3-ubyte", 3), (f"{prefix}-labels-idx1-ubyte", 1)):
            path = _find_idx(directory, stem)
            if path is None:
                raise DataError(
                    f"{directory}: has no {stem} or {stem}.gz; give the directory of the four original files "
                    f"with --source_dir, {or_else}"
                )
            arrays.append(read_idx(path, dimensions))
        if len(arrays[0]) != len(arrays[1]):
            raise DataError(f"{directory}: {len(arrays[0])} {part} images, but {len(arrays[1])} labels")
        parts[part] = _images(arrays[0], arrays[1])
    return Splits(parts["train"], parts["test"])


def _find_idx(directory: Path, stem: str) -> Path | None:
    dotted = stem.replace("-idx", ".idx")  # how some unpackers spell it
    names = (stem, f"{stem}.gz", dotted, f"{dotted}.gz")
    return next((directory / name for name in names if (directory / name).exists()), None)


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """An IDX file of unsigned bytes, as the MNIST family has it, gzipped or not."""
    data = _unpacked(path)
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(
            f"{path}: an IDX file of {dimensions} dimensions begins with 0008{dimensions:02x}, this one with "
            f"{data[:4].hex()}; copy or download it again"
        )
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", dimensions, 4))
    if len(data) - header != math.prod(shape):
        raise DataError(
            f"{path}: promises {shape} bytes and holds {len(data) - header}; copy or download it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


_CIFAR_FILES = {"train": [f"data_batch_{n}.bin" for n in range(1, 6)], "test": ["test_batch.bin"]}
_CIFAR_RECORD_BYTES = 1 + 32 * 32 * 3


def _cifar10(source: Path | None) -> Splits:
    directory = source or keras_datasets()
    read = _cifar_reader(directory)
    parts = {}
    for part, names in _CIFAR_FILES.items():
        data = b"".join(map(read, names))
        if not data or len(data) % _CIFAR_RECORD_BYTES:
            raise DataError(
                f"{directory}: the {part} files of CIFAR-10 hold {len(data)} bytes, which is not a number of "
                f"records of {_CIFAR_RECORD_BYTES} bytes; copy or download them again"
            )
        rows = np.frombuffer(data, np.uint8).reshape(-1, _CIFAR_RECORD_BYTES)
        # Stored by colour; everybody wants the colours of a pixel together.
        parts[part] = _images(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0])
    return Splits(parts["train"], parts["test"])


def _cifar_reader(directory: Path) -> Callable[[str], bytes]:
    for place in (directory, directory / "cifar-10-batches-bin"):
        if (place / "test_batch.bin").exists():
            return lambda name: whole_file(place / name)
    for archive in (directory / "cifar-10-binary.tar.gz", directory / "cifar-10-binary.tar"):
        if archive.exists():
            return _untar(archive)
    inner = "cifar-10-batches-py"
    for place in (directory, directory / inner, directory / f"{inner}-target" / inner):  # the last is Keras'
        if (place / "test_batch").exists():
            return lambda name: _from_pickle(place / name.removesuffix(".bin"))
    raise DataError(
        f"{directory}: no CIFAR-10 there (cifar-10-binary.tar.gz, data_batch_1.bin to test_batch.bin, or the "
        "unpacked Python version); name the directory of the original files with --source_dir, or fetch "
        'Keras\' copy with: python -c "import keras; keras.datasets.cifar10.load_data()"'
    )


def _from_pickle(path: Path) -> bytes:
    """As the binary version has it: per record the label, then its bytes."""
    try:
        labels, pixels = cifar_pickle.batch(whole_file(path))
        return np.hstack([labels.reshape(-1, 1), pixels]).tobytes()
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: cannot be read ({outside.line(error)}); copy or download it again"
        ) from error


_TAR_ERRORS = (tarfile.TarError, OSError, EOFError, KeyError, ValueError, OverflowError, RecursionError)


def _untar(archive: Path) -> Callable[[str], bytes]:
    """Reads members of the archive, which is unpacked once: no header can ask for more than it holds."""
    data = _unpacked(archive)

    def read(name: str) -> bytes:
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
                stream = tar.extractfile(f"cifar-10-batches-bin/{name}")
                return stream.read() if stream is not None else b""
        except _TAR_ERRORS as error:
            raise DataError(
                f"{archive}: {name} cannot be read ({error}); copy or download it again"
            ) from error

    return read


def _unpacked(path: Path) -> bytes:
    """All of a file, gzipped or not."""
    data = whole_file(path)
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return gunzip(data, UNPACKED_BYTES)
    except ValueError as error:
        raise DataError(f"{path}: cannot be decompressed ({error}); copy or download it again") from error


def _labelled(where: Path, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Columns:
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise DataError(
            f"{where}: expected images of 3 dimensions and as many labels, got {images.shape} and "
            f"{labels.shape}; download it again"
        )
    if images.dtype.kind not in "iu" or labels.dtype.kind not in "iu":
        raise DataError(
            f"{where}: expected whole numbers, got {images.dtype} and {labels.dtype}; download it again"
        )
    return _images(images, labels)


def _images(images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Columns:
    return {"image": images.astype(np.uint8), "label": labels.reshape(-1).astype(np.int64)}


# --- small real data sets that come with scikit-learn --------------------------------------------------


def _sklearn(name: str) -> Any:
    try:
        import sklearn.datasets
    except ImportError as error:
        raise SetupError(
            "this data set comes with scikit-learn, which is not installed; install it with: pip install "
            "scikit-learn"
        ) from error
    return getattr(sklearn.datasets, f"load_{name}")()


def _digits(_: Path | None) -> Splits:
    bunch = _sklearn("digits")
    return _split({"image": bunch.images.astype(np.uint8), "label": bunch.target.astype(np.int64)})


def _table(name: str) -> Splits:
    bunch = _sklearn(name)
    names = [str(feature).replace(" (cm)", "").replace(" ", "_") for feature in bunch.feature_names]
    columns: Columns = {n: bunch.data[:, i].astype(np.float32) for i, n in enumerate(names)}
    columns["label"] = bunch.target.astype(np.int64)
    return _split(columns)


def _split(columns: Columns) -> Splits:
    """Four fifths for training; mixed first, for the sources are sorted by class or by writer."""
    order = np.random.default_rng(_SEED).permutation(
        len(columns["label" if "label" in columns else "target"])
    )
    cut = len(order) * 4 // 5
    return Splits(
        {name: values[order[:cut]] for name, values in columns.items()},
        {name: values[order[cut:]] for name, values in columns.items()},
    )


# --- generated data sets: the columns of well-known ones, values drawn from a stated model --------------


def _draw(random: np.random.Generator, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return (random.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(np.int64)


def _words(random: np.random.Generator, count: int, weights: Mapping[str, float]) -> npt.NDArray[Any]:
    p = np.array(list(weights.values()))
    return random.choice(np.array(list(weights), dtype=object), count, p=p / p.sum())


def _heart(_: Path | None) -> Splits:
    """The columns of the UCI heart disease table; the risk is linear in a few of them."""
    random, n = np.random.default_rng(_SEED), 3000
    age = random.normal(54, 9, n).clip(29, 77).round().astype(np.int64)
    thal = _words(random, n, {"normal": 0.55, "reversible": 0.38, "fixed": 0.07})
    columns: Columns = {
        "age": age,
        "sex": (random.random(n) < 0.68).astype(np.int64),
        "cp": random.integers(0, 5, n),
        "trestbps": random.normal(131, 17, n).clip(94, 200).round().astype(np.int64),
        "chol": random.normal(246, 50, n).clip(126, 564).round().astype(np.int64),
        "fbs": (random.random(n) < 0.15).astype(np.int64),
        "restecg": random.integers(0, 3, n),
        "thalach": (220 - age - random.normal(16, 18, n)).clip(71, 202).round().astype(np.int64),
        "exang": (random.random(n) < 0.33).astype(np.int64),
        "oldpeak": random.exponential(1.0, n).clip(0, 6.2).round(1).astype(np.float32),
        "slope": random.integers(1, 4, n),
        "ca": random.choice(4, n, p=[0.58, 0.22, 0.13, 0.07]).astype(np.int64),
        "thal": thal,
    }
    logits = (
        -6.7
        + 0.05 * age
        + 1.2 * columns["sex"]
        + 0.5 * columns["cp"]
        + 1.1 * columns["ca"]
        + 0.7 * columns["oldpeak"]
        + 1.0 * columns["exang"]
        + 1.6 * (thal == "reversible")
        - 0.02 * (columns["thalach"] - 150)
    )
    columns["target"] = _draw(random, 2.0 * logits)
    return _split(columns)


def _census(_: Path | None) -> Splits:
    """The columns of the census income table; income rises with schooling, age, hours and marriage."""
    random, n = np.random.default_rng(_SEED), 20000
    schooling = {"HS-grad": 32, "Some-college": 22, "Bachelors": 16, "Masters": 5, "11th": 4, "Doctorate": 1}
    rank = {
        "11th": -1.0,
        "HS-grad": 0.0,
        "Some-college": 0.4,
        "Bachelors": 1.3,
        "Masters": 1.8,
        "Doctorate": 2.5,
    }
    jobs = {
        "Craft-repair": 0.2,
        "Exec-managerial": 0.9,
        "Prof-specialty": 0.7,
        "Sales": 0.2,
        "Other-service": -0.9,
    }
    age = random.gamma(6, 6.4, n).clip(17, 90).round().astype(np.int64)
    education = _words(random, n, schooling)
    married = _words(random, n, {"Married-civ-spouse": 46, "Never-married": 33, "Divorced": 14, "Widowed": 3})
    occupation = _words(random, n, dict.fromkeys(jobs, 1.0))
    hours = random.normal(40, 12, n).clip(1, 99).round().astype(np.int64)
    gain = np.where(random.random(n) < 0.08, random.lognormal(8.5, 1, n).clip(0, 99999), 0).astype(np.int64)
    columns: Columns = {
        "age": age,
        "workclass": _words(
            random, n, {"Private": 70, "Self-emp-not-inc": 8, "Local-gov": 6, "State-gov": 4}
        ),
        "education": education,
        "marital-status": married,
        "occupation": occupation,
        "relationship": _words(random, n, {"Husband": 40, "Not-in-family": 26, "Own-child": 16, "Wife": 5}),
        "race": _words(random, n, {"White": 85, "Black": 10, "Asian-Pac-Islander": 3, "Other": 1}),
        "sex": _words(random, n, {"Male": 67, "Female": 33}),
        "capital-gain": gain,
        "capital-loss": np.where(random.random(n) < 0.05, random.integers(100, 4000, n), 0).astype(np.int64),
        "hours-per-week": hours,
        "native-country": _words(random, n, {"United-States": 90, "Mexico": 2, "Canada": 1, "India": 1}),
    }
    logits = (
        -2.6
        + np.array([rank[str(word)] for word in education])
        + np.array([jobs[str(word)] for word in occupation])
        + 2.0 * (married == "Married-civ-spouse")
        - 0.0012 * (age - 50.0) ** 2
        + 0.035 * (hours - 40)
        + 1.5 * (gain > 5000)
    )
    columns["label"] = _draw(random, 2.0 * logits)
    return _split(columns)


FRAPPE_FEATURES = 5383
"""One more than the largest feature number, as in the real set; 0 stands for nothing."""


def _frappe(_: Path | None) -> Splits:
    """Ten feature numbers per record, one from each of ten fields; the label hangs on pairs of them."""
    random, n = np.random.default_rng(_SEED), 50000
    sizes = [957, 4082, 7, 7, 2, 2, 3, 9, 80, 233]  # users, apps, then context; sums up to 5382
    starts = 1 + np.concatenate(([0], np.cumsum(sizes)[:-1]))
    # Popular ones come often, as with real users and apps, so that a few thousand records teach something.
    picks = [np.minimum(random.geometric(min(0.5, 8 / size), n) - 1, size - 1) for size in sizes]
    feature = np.stack([start + pick for start, pick in zip(starts, picks, strict=True)], axis=1).astype(
        np.int64
    )
    bias = random.normal(0, 0.6, FRAPPE_FEATURES)
    factors = random.normal(0, 0.45, (FRAPPE_FEATURES, 4))[feature]
    pairs = 0.5 * (factors.sum(1) ** 2 - (factors**2).sum(1)).sum(1)
    logits = 2.0 * (bias[feature].sum(1) + pairs) - 0.7
    return _split({"feature": feature, "label": _draw(random, logits)})


DATASETS: Mapping[str, Dataset] = {
    "mnist": Dataset("handwritten digits 28x28; original files or Keras' copy", _mnist),
    "fashion_mnist": Dataset("pieces of clothing 28x28; original files or Keras' copy", _fashion_mnist),
    "cifar10": Dataset("colour images 32x32; original files, binary version", _cifar10),
    "digits": Dataset("handwritten digits 8x8, real, comes with scikit-learn", _digits),
    "iris": Dataset("flowers, real, comes with scikit-learn", lambda _: _table("iris")),
    "breast_cancer": Dataset("cell nuclei, real, comes with scikit-learn", lambda _: _table("breast_cancer")),
    "heart": Dataset("columns of UCI heart disease, generated", _heart),
    "census": Dataset("columns of census income, generated", _census),
    "frappe": Dataset("feature numbers as in Frappe, generated", _frappe),
}
