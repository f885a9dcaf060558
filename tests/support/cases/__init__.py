"""Cases: convolutions with their layouts and types, chosen by hand or drawn, and the lane in which each runs."""
