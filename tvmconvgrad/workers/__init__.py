"""Worker processes that live on from request to request: the parent's side of one and of several, and the child's."""
