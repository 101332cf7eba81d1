"""A Keras model file as the loop sees it."""
