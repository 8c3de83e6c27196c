"""From `hvdkit.yaml`, HVDKIT_* variables and flags to a JobSpec, and where each of its values came from."""
