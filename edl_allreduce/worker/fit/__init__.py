"""`elastic.fit`: a compiled Keras model as the engine sees it. `edl_allreduce.elastic` has the public names.

The step is that of a model file (`worker.keras.trainer`), with loss, optimizer and metrics as `compile` made
them; the process's part in the job is that of a user's own loop (`worker.script.part`).
"""
