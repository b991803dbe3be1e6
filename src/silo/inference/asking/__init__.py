"""How texts ask for what they need, so that many can be advanced together."""
