"""The machines: ``target`` (what a chip has), ``execute`` (its numbers, tile by tile), ``numerics`` (its rounding)."""
