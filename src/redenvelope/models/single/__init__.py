"""ONE USER AT A TIME: learned networks as plain arrays, for few rows at once and without a compiled program.

One call of a compiled program costs more than all the arithmetic of one user's tree. So what is constant is multiplied
out when a plan is opened, and the rest is a few products of matrices. Nothing here imports jax but `build`, which reads
the networks of a loaded plan.
"""
