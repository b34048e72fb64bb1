"""What does a policy say about one path?

The pure function behind `why` and the tests. Whoever walks a tree keeps the states of `Compiled` instead.
"""

from collections.abc import Callable
from functools import lru_cache

from sandboxfs.policy.compiled import Compiled, State
from sandboxfs.policy.model import Decision, Needs, Policy, Rule
from sandboxfs.policy.names import encoded
from sandboxfs.policy.pattern import parse, within

# Asked with a path and what a rule needs to know: whether the entry, or its parent, is in the workspace.
Exists = Callable[[str, Needs], bool]

_compiled = lru_cache(maxsize=8)(Compiled)


def decide(
    policy: Policy, path: str, is_dir: bool = False, *, root: str = "/", exists: Exists | None = None
) -> Decision:
    """Decide about *path*, which is relative to *root* and need not exist; one ending in `/` is a directory.

    Without *exists* everything is taken to be in the workspace, so that rules that protect it apply. The
    decision is the same for every access: ask it with `Decision.allows` or `Decision.errno`.
    """
    return states_on_the_way(policy, path, is_dir, root=root, exists=exists)[-1].decision


def states_on_the_way(
    policy: Policy, path: str, is_dir: bool = False, *, root: str = "/", exists: Exists | None = None
) -> list[State]:
    """Return the states of the root, of every directory on the way to *path*, and of *path* itself."""
    names = names_of(path)

    def known(depth: int, needs: Needs) -> bool:
        return exists is None or exists("/".join(names[:depth]), needs)

    walked = [encoded(name) for name in names]
    return _compiled(policy, root).walk(walked, is_dir or path.endswith("/"), known)


def names_of(path: str) -> list[str]:
    """Split a relative path; raise `ValueError` for one that leads outside or is none."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if path.startswith("/") or ".." in names or "\0" in path:
        raise ValueError(f"not a path inside the root: {path!r}")
    return names


def can_match_in(rule: Rule, root: str) -> bool:
    """Tell whether *rule* names anything in *root*; False for a place on the host that is elsewhere."""
    return bool(within(parse(rule.place or rule.pattern), root))
