"""Training of values: values to go inside the learned model, and soft Q-learning from the log without a model."""
