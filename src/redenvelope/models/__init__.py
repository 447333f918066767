"""Environment models: reward, costs and transitions, learned from a log once for all prices."""
