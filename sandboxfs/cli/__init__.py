"""The command line: a module for each verb, or for verbs alike: parse, call `service`, show."""
