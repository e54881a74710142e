"""Compiled programs as files: ``save`` and ``load``, and ``compile_exported`` for what ``torch.export`` made."""
