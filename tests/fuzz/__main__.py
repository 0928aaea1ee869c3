"""Fuzz a connection, guided by coverage: `make fuzz`. An input that fails is written to build/fuzz."""

import logging
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["toolgate.transports.http.wire"]):
    from tests.fuzz.fuzz_connection import MAX_INPUT, check, write_corpus

FOLDER = Path("build/fuzz")

logging.disable(logging.CRITICAL)  # failures of handlers are expected
write_corpus(FOLDER / "corpus")
options = [f"-max_len={MAX_INPUT}", f"-artifact_prefix={FOLDER}/", "-timeout=10", *sys.argv[1:]]
atheris.Setup([sys.argv[0], *options, str(FOLDER / "corpus")], check)
atheris.Fuzz()
