"""Builds a Horovod wheel for the torch that is installed, keeps it in a cache, and says what it can do.

`target` says what a wheel is for, `builder` makes one (or finds it in `cache`), `check` reads the installed one.
"""
