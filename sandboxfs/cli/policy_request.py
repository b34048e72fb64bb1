"""What does a command line say about policy? The value that options become and that mounting reads."""

from dataclasses import dataclass

from sandboxfs.policy.model import Rule


@dataclass(frozen=True)
class PolicyRequest:
    """What the command line says about policy; None or empty where it says nothing.

    *roots* when places outside the workspace can be allowed. *shared* when rules are for several workspaces,
    so that one which names nothing in this one is no mistake. *more* are asked after all others but the
    built-in.
    """

    mode: str | None = None
    preset: str | None = None
    rules: tuple[str, ...] = ()
    allows: tuple[str, ...] = ()
    symlinks: str | None = None
    log_level: str | None = None
    roots: bool = False
    shared: bool = False
    more: tuple[Rule, ...] = ()
