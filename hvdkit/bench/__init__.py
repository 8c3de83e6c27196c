"""Sweeps, statistics, results, verdict and report of benchmarks."""
