"""Container images: drives docker, podman or buildah over `images/` and over a user's own project."""
