"""Sources -> documents -> dedup -> decontamination -> token shards; statistics and overlap."""
