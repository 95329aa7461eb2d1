"""deco-bench: how long each part of the learner takes on the machine it runs on. It imports what deco-run does."""
