"""The same verbs on a Ray cluster: corpora, stores, training, search and serving; the only package that imports ray."""
