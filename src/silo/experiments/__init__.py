"""The paper's tables and figures, and a few it lacks, each from one recipe; `silo experiment NAME`."""
