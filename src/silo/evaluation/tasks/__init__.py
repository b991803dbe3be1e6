"""Zero-shot classification: tasks are data, a label is the word that the model would write next."""
