"""An answer from the checked request to the bytes of the reply: its texts, whom they are owed to, their JSON."""
