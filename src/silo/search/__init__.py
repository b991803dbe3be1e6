"""Three search engines over plain arrays; none of them knows a document or a store."""
