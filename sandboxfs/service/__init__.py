"""The service: what can be done with sandboxes, as functions and frozen values that every door stands on.

A door is a way in for people or programs: the command line (`cli`), Python (`api`), later HTTP and a page. A
door makes a request, calls one function of the service, and shows the result. Running programs has a room of
its own, `runs`.
"""
