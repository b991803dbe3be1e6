"""What licence statements, expressions, texts and headers say."""
