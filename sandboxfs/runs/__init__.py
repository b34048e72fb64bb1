"""How does a program run in the views of a sandbox?"""
