"""Who is serving? One process, one sandbox, one mount."""
