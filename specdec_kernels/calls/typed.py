"""The calls that backends get, for type checkers: ``typed.pyi`` has a class for each ``Op.Call``."""
