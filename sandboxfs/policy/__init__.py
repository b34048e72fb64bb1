"""Policy: rules, decisions, and the configuration that rules come from."""
