"""Answers that take several engine requests: beams, guidance, healing."""
