"""Write the list of common passwords: `python -m tests.server.auth.login.common_passwords FILE…`, whose lines, words of
JSON or gzipped lines are passwords."""

import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from toolgate.server.auth.login.passwords import COMMON, MIN_BARE, fold_password, hash_password


def read_passwords(file: Path) -> list[str]:
    if file.suffix == ".json":
        return list(json.loads(file.read_text()))
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return data.decode().splitlines()


def pack_passwords(passwords: Iterable[str]) -> bytes:
    folded = {fold_password(each) for each in passwords}
    return b"".join(sorted({hash_password(each) for each in folded if len(each) >= MIN_BARE}))


if __name__ == "__main__":
    COMMON.write_bytes(pack_passwords(each for name in sys.argv[1:] for each in read_passwords(Path(name))))
