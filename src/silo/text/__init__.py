"""Text as the rest of silo sees it: normalised, tokenised, hashed word by word, parsed strictly."""
