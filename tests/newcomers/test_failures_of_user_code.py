"""What user code raises ends the job when trying again is of no use, and is told once, last."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.training

RAISES_LATER = """

calls = []
def count(labels):
    calls.append(labels)
    if len(calls) > 20:
        raise ValueError("my own bug")
    return labels

def later(labels, predictions):
    return loss(tf.ensure_shape(tf.py_function(count, [labels], tf.int64), [None]), predictions)
"""


def test_a_model_that_raises_while_it_is_built_is_not_tried_again(launch, zoo, lines):
    text = (zoo / "net.py").read_text()
    (zoo / "net.py").write_text(
        text.replace("    return keras.Seq", '    raise ValueError("my own bug")\n    return keras.Seq')
    )
    job = launch(model_zoo=zoo, model_def="net.custom_model", training_data=lines, num_workers=1)
    assert job.wait() == 1
    assert len([e for e in job.events() if e.kind == "launch"]) == 1, job.story()
    said = job.stdout().splitlines()
    assert said[-1] == "ValueError: my own bug"
    assert f'File "{zoo / "net.py"}", line 8, in custom_model' in said[-3]
    assert "Traceback" not in job.stdout() and "Traceback" in job.log(0)


def test_one_that_raises_at_the_same_step_again_is_not_tried_a_third_time(launch, zoo, lines):
    (zoo / "net.py").write_text((zoo / "net.py").read_text() + RAISES_LATER)
    job = launch(
        model_zoo=zoo, model_def="net.custom_model", loss="later", training_data=lines, num_workers=1
    )
    assert job.wait() == 1
    assert len([e for e in job.events() if e.kind == "launch"]) == 2, job.story()
    assert "the same failure in the same place" in job.stdout()
    said = job.stdout().splitlines()
    assert said[-1] == "ValueError: my own bug"
    assert said[-2].strip() == 'raise ValueError("my own bug")'
    assert "{{node" not in job.stdout()
