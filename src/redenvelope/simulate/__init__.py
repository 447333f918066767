"""Simulated campaigns with known dynamics, against which every claim can be checked."""
