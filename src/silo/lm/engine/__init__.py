"""A decode engine for LLaMA-style networks on the processor: faster than transformers, the same bits in any batch."""
