"""NO MODEL: soft Q-learning from the log, once for each price, or once for all prices. Training only."""
