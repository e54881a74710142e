"""Eager, compiled and Inductor side by side: first calls, differences, interleaved times. Used by bench and demo."""
