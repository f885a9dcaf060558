"""How a GEMM's operands come to shared memory."""
