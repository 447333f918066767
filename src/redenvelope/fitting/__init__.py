"""THE FACTORY: wires the stages from a log and a budget to a plan, and certifies it."""
