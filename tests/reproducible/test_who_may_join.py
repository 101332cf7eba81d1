"""Whoever would compute other bits does not take part, and is told why."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl_allreduce.core.course import differences
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.errors import ModelError, UsageError
from edl_allreduce.spec import parse_job
from edl_allreduce.worker.checkpoint.fit import check_identity
from edl_allreduce.worker.checkpoint.format import Contents, JobIdentity, Loaded
from edl_allreduce.worker.loop.journal import Journal

GIVEN = ["--job_name=a", "--model_def=a.b", "--training_data=d"]
BITS = {"threads (--threads_per_worker)": "1", "bits of a probe step": "sha256:aa"}


def spec(*flags: str):
    return parse_job("train", [*GIVEN, *flags]).spec


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--reproducible", "--elastic_batch=worker"], "exclude each other"),
        (["--reproducible", "--gradient_compression=fp16"], "exclude each other"),
        (
            ["--reproducible", "--num_workers=16", "--virtual_workers=12"],
            "--virtual_workers=12 is less than the 16 workers",
        ),
        (
            ["--reproducible", "--num_workers=2", "--max_workers=6"],
            "--virtual_workers=4 is less than the 6 workers .* Give --virtual_workers=6 or a multiple",
        ),
        (["--reproducible", "--verify_fingerprint=abc"], "expected the 64 hexadecimal digits"),
        ([f"--verify_fingerprint={'0' * 64}"], "needs --reproducible"),
    ],
)
def test_flags_that_cannot_give_the_same_bits_are_refused(flags, words):
    with pytest.raises(UsageError, match=words):
        spec(*flags)


def test_a_loop_of_ones_own_is_refused():
    with pytest.raises(UsageError, match="--reproducible needs a model of the zoo"):
        parse_job("train", ["--job_name=a", "--job_command=python x.py", "--reproducible"])


def test_threads_and_parts_do_not_depend_on_the_workers_or_their_machine():
    one = spec("--reproducible", "--num_workers=1", "--minibatch_size=96")
    four = spec("--reproducible", "--num_workers=4", "--minibatch_size=24")
    assert one.threads == four.threads == 1
    assert one.micro_batch == four.micro_batch == 24
    assert one.virtual_ranks == 4 and spec().virtual_ranks == 0


@pytest.mark.parametrize(("workers", "parts"), [(1, 4), (2, 4), (3, 6), (4, 4), (5, 5), (8, 8)])
def test_by_default_all_workers_have_as_much_to_do(workers, parts):
    assert spec("--reproducible", f"--num_workers={workers}").virtual_ranks == parts
    assert spec("--reproducible", f"--num_workers={workers}", "--virtual_workers=24").virtual_ranks == 24


def checkpoint(bits: dict[str, str]) -> Loaded:
    course = JobIdentity("a", 0, True, 5, "data", bits)
    return Loaded(Path("c/version-3"), Contents(1, "", 3, 0, course, Journal(), [], [], 0), [])


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (BITS, {**BITS, "threads (--threads_per_worker)": "2"}, "other bits: threads .* the rest 1"),
        (BITS, {**BITS, "bits of a probe step": "sha256:bb"}, "other bits: bits of a probe step"),
        ({}, BITS, "was not made with --reproducible"),
        (BITS, {}, "was made with --reproducible, and this job is not"),
    ],
)
def test_a_checkpoint_goes_on_only_where_its_bits_are_the_same(was, now, words):
    check_identity(checkpoint(was), JobIdentity("a", 0, True, 5, "data", was))
    with pytest.raises(UsageError, match=words):
        check_identity(checkpoint(was), JobIdentity("a", 0, True, 5, "data", now))


@pytest.mark.tensorflow
def test_a_worker_says_what_its_bits_depend_on(tmp_path):
    from edl_allreduce.worker.keras.fingerprint import of_bits

    def on(flags: str, probe: str = "x") -> dict[str, str]:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: fpu {flags} sse2\n")
        return of_bits(spec("--reproducible"), probe, tmp_path / "cpuinfo")

    assert differences(on("avx2 fma"), on("fma avx2")) == ""
    assert "processor" in differences(on("avx2 fma"), on("avx2 fma avx512f"))
    assert differences(on("avx2"), on("avx2", "y")) == "bits of a probe step"
    assert "TensorFlow" in on("avx2")


@pytest.mark.tensorflow
def test_a_feed_that_draws_random_numbers_is_refused():
    import keras
    import numpy as np
    import tensorflow as tf

    from edl_allreduce.worker.keras.pipeline import Parser
    from edl_allreduce.worker.keras.zoo import Mode

    records = {"x": np.arange(6, dtype=np.float32).reshape(6, 1)}
    flip = keras.layers.RandomFlip()

    def plain(dataset, mode, metadata):
        return dataset.shuffle(4).map(lambda r: (r["x"] * tf.random.stateless_uniform([], (1, 2)), r["x"]))

    def stateful(dataset, mode, metadata):
        return dataset.map(lambda r: (r["x"] + tf.random.uniform([]), r["x"]))

    def layer(dataset, mode, metadata):
        return dataset.map(lambda r: (flip(tf.reshape(r["x"], [1, 1, 1]), training=True), r["x"]))

    for feed in (stateful, layer):
        Parser(feed, Mode.TRAINING, None)(records, 6)
        with pytest.raises(ModelError, match=r"draws random numbers .*--reproducible refuses it"):
            Parser(feed, Mode.TRAINING, None, refuses_chance=True)(records, 6)
    keras.utils.set_random_seed(1)
    parse = Parser(plain, Mode.TRAINING, None, refuses_chance=True)
    first, again = parse(records, 6), parse(records, 6)
    assert first[1].numpy().tolist() == again[1].numpy().tolist(), "a shuffle is the same each time"


def trainer_with(loss, kind):
    import keras

    from edl_allreduce.testing.fake_ring import Meeting
    from edl_allreduce.worker.keras.zoo import ModelDefinition
    from tests.reproducible.conftest import parts_of

    def model():
        return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])

    definition = ModelDefinition(Path("m.py"), model, loss, lambda: keras.optimizers.SGD(), lambda d, m, i: d)
    ring = Meeting().ring()
    ring.join(Plan(1, (Seat("a", 0, ""),)), "a")
    ring.sum = list  # of one
    trainer = kind(definition, ring, 3)
    trainer.build(parts_of(0, 0, 6)[0])
    return trainer


@pytest.mark.tensorflow
def test_a_loss_that_draws_for_each_worker_alone_is_refused():
    import keras
    import tensorflow as tf

    from edl_allreduce.worker.keras.reproducible import ReproducibleTrainer

    def kind(*given):
        return ReproducibleTrainer(*given, virtual_ranks=6)

    def stateful(labels, predictions):
        return tf.reduce_mean(predictions**2 * tf.random.uniform([]))

    def of_keras(labels, predictions):
        return tf.reduce_mean(predictions**2 * keras.random.uniform([]))

    def stateless(labels, predictions):
        return tf.reduce_mean(predictions**2 * tf.random.stateless_uniform([], (1, 2)))

    for loss in (stateful, of_keras):
        with pytest.raises(ModelError, match=r"m\.py: the model or its loss draws random numbers"):
            trainer_with(loss, kind)
    assert trainer_with(stateless, kind).probe


@pytest.mark.tensorflow
def test_in_the_default_mode_a_loss_may_keep_a_state_of_its_own():
    import keras
    import tensorflow as tf

    from edl_allreduce.worker.keras.trainer import Trainer
    from edl_allreduce.worker.loop.steps import StepInput
    from tests.reproducible.conftest import BATCH, parts_of

    calls = keras.Variable(0.0, trainable=False)

    def loss(labels, predictions):
        calls.assign_add(1.0)
        return tf.reduce_mean(predictions**2)

    trainer = trainer_with(loss, Trainer)
    before = float(calls.numpy())
    trainer.step(StepInput(0, parts_of(0, 0, 1)[:1], 0, BATCH))
    assert float(calls.numpy()) == before + 1
