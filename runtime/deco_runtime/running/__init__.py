"""A run: opened, its loop, its learner thread, what learning may take, when it is saved, how it is scored."""
