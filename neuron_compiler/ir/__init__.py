"""The intermediate representation: ``graph`` (what), ``plan`` (how, where, when), ``text``, ``verify``."""
