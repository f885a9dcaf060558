"""Arrays where an error shows: between forbidden pages, and in DLPack's capsules made by hand."""
