"""Questions to stores: what is read, what is answered, which sentences it rests on, and when nothing is found."""
