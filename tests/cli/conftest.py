"""Runs the command line in process."""

import pytest

from specdec_kernels import cli
from specdec_kernels.generate import models
from specdec_kernels.generate.models import device_of


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the command line; gives exit status, stdout and stderr."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    # What is compared with it runs on the CPU.
    monkeypatch.setattr(models, "device_of", lambda word: device_of("cpu" if word == "auto" else word))

    def run(*arguments):
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def refused(run):
    """Says what is said of wrong arguments: one line."""

    def refused(*arguments):
        status, out, err = run(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("specdec-kernels")
        return err

    return refused
