"""Runs the command line in process."""

import pytest

from specdec_kernels import cli


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the command line; gives exit status, stdout and stderr."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*arguments):
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return run
