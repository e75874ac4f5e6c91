"""Adapters: this package's ops under the names and signatures of inference engines.

One module an engine, imported by name (``from specdec_kernels.engines import flashinfer``). A module imports its engine
when a function needs it, and importing a module changes nothing in the engine. ``install()`` replaces the engine's
functions by ours, ``uninstall()`` restores them. docs/engines says what changes.
"""
