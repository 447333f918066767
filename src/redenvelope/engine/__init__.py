"""WHERE IT RUNS: work on partitions, results in order."""
