"""Texts that people read: what one compiled graph became. Functions from records to strings; nothing is written."""
