"""What are competitors, kinds of rows and units called? One place, so that pure parts need nothing else."""

PLAIN, OVERLAYFS, FUSE_OVERLAYFS, UNIONFS = "plain", "overlayfs", "fuse-overlayfs", "unionfs-fuse"
OWN, RULES_OFF = "sandboxfs", "rules off"
THINNEST = "pyfuse3"
ONLY_SLEEPS, ONE_WAITS = "only sleeps", "one waits"
OTHERS = (PLAIN, OVERLAYFS, FUSE_OVERLAYFS, UNIONFS, RULES_OFF, THINNEST, ONLY_SLEEPS, ONE_WAITS)
USUAL = (PLAIN, OVERLAYFS, FUSE_OVERLAYFS, UNIONFS, OWN, RULES_OFF)
"""Who takes part when nobody is named: there is no time for more."""
EVERYBODY = (*USUAL, THINNEST, ONLY_SLEEPS, ONE_WAITS)

WORKLOAD, LATENCY, SINGLE = "workload", "latency", "single"
SECONDS, MICROSECONDS, MEGABYTES = "s", "us", "MB"

MOUNT_READY = "mount ready"
MEMORY = "memory after a walk"
LATENCIES = (
    "create",
    "open, read, close",
    "stat known",
    "stat unknown",
    "chmod",
    "rename",
    "unlink",
    "readdir of 1,000",
)
