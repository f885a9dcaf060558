"""What results are compared with: a reference in float64, PyTorch, oneDNN, and other projects' test data."""
