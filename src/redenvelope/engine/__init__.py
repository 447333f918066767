"""Engines that run work on partitions, and the memory they may use."""
