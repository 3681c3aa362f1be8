"""Signed, verified, joined, and visited after the handover."""
