"""In which ways can the workspace have moved away from what the sandbox started from?

Or what did an earlier commit leave to be resolved?

Half sentences that follow the name of a path.
"""

CHANGED = "changed in the workspace since the sandbox changed it"
DELETED = "deleted in the workspace since the sandbox changed it"
CHANGED_AND_DELETED = "changed in the workspace since the sandbox deleted it"
MADE_TOO = "made in the workspace too"
MADE_BELOW = "made in the workspace since the sandbox deleted what was there"
UNRESOLVED = "unresolved conflict markers"
FILLED = "has new entries in the workspace since the sandbox deleted it"
