"""An NFS 4.1 client as a FUSE file system, for kernels that have none: `python -m nfs_client` is a mount.nfs.

It stands where nfs-common's program and the kernel's client stand on a node: the kubelet starts it with the arguments
of the PersistentVolume, and pods see files. It is a `hard` mount with sessions, as our volumes ask for. What it lacks
of the kernel's: it does one thing at a time, writes through instead of behind, keeps locks on this machine only, and a
file that is removed while somebody has it open is gone.
"""
