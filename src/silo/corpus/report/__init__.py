"""What a corpus is made of: statistics, n-gram overlap and their plots."""
