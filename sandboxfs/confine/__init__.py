"""Confinement of a program: bubblewrap or Landlock, seccomp, environment and home.

Four processes, in this order: `supervisor` forks a child; in the child, `enter` executes bubblewrap or
becomes a subreaper; so `init` runs, as process 1 of the program's namespace or in the subreaper; `init` forks
the program and starts it. `runner` is a process that hosts a supervisor for callers that may not fork or
handle signals; the command line is such a host itself.
"""
