"""Training in an elastic job, in a few lines of a Keras 3 or TensorFlow 2 script: your own loop, or `fit`.

    from edl_allreduce import elastic

    with elastic.join(records=len(x), state=[model, optimizer], save=save) as job:
        for step in job.steps():
            with step:
                loss, gradients = train_on(x[step.indices], y[step.indices])
                optimizer.apply(step.average(gradients, loss), model.trainable_variables)

    elasticdl train --job_name=mine --num_workers=4 --job_command="python my_train.py"

For a compiled Keras model it is one line beside `model.fit`:

    history = elastic.fit(model, x, y, epochs=10, batch_size=64, validation_data=(x_val, y_val))

The same script runs alone (`python my_train.py`) and under horovodrun.
"""

from edl_allreduce.worker.fit.call import fit, rank
from edl_allreduce.worker.script.job import ElasticJob, Step, join

__all__ = ["ElasticJob", "Step", "fit", "join", "rank"]
