"""hvdkit: from a laptop to many GPUs with Horovod and MPI."""

__version__ = "0.1.0"
