"""What does a new configuration file say?

Everything in it is commented out, so that writing it changes nothing. Lines that start with `#` and no blank
are settings; a test takes their marks away and reads the result.
"""

TEMPLATE = """\
# The configuration of sandboxfs. What is commented out is the default or an example.
# docs/policy.md explains modes, order and patterns; `sandboxfs config check` reads this file and says what is
# wrong with it.

#[workspace]

# The directory to work on when none is given.
#root = "~/projects/app"

# What paths that no rule names may be used for: "rw" (changes stay in the sandbox) or "ro".
#mode = "rw"

# false: no rule is enforced. Changes stay in the sandbox all the same.
#enabled = true

# Links that lead out of the view: "guard" keeps those into system directories only, "keep" all, "deny" none.
#symlinks = "guard"

# Places to allow, by path: inside the workspace, or other directories to work on.
#[[workspace.allow]]
#path = "~/projects/app/generated"
#mode = "rw"

# Rules, by pattern. The first that matches decides, so exceptions come before what they are exceptions from.
#   hide   not listed, not found           ro   can be read and run, not changed
#   deny   listed, cannot be used          rw   can be changed, inside the sandbox

# Example settings may be shown to the program, real ones may not: anywhere, and also when made later.
#[[rule]]
#path = "**/.env.example"
#mode = "ro"

#[[rule]]
#path = "**/.env*"
#mode = "hide"

#[[rule]]
#path = "*.pem"
#mode = "hide"

# A path with a slash starts at the workspace; one with "/" or "~" in front is a place on this machine.
#[[rule]]
#path = "vendor/**"
#mode = "ro"

#[log]

# What is written to the audit log: "denials", "writes" (every change and every denial) or "all" (reads too).
#level = "writes"

# A file of the log ends at this many bytes, and this many files are kept.
#size = 16777216
#keep = 4
"""
