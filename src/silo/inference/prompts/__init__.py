"""What comes after prompts: observed once, mixed under any settings."""
