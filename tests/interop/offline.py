"""The command `toolgate`, with a copy of the one document that the environment holds; it looks again after a moment for
what it could not reach."""

import hashlib
import json
import os
import sys

from toolgate.server.auth.clients import reachability, well_known

if __name__ == "__main__":
    document = os.environ["WELL_KNOWN"].encode()
    copy = well_known.Copy(document, hashlib.sha256(document).hexdigest())
    well_known.DOCUMENTS = {json.loads(document)["client_id"]: copy}  # before metadata_documents.py looks for it
    reachability.AGAIN = 0.1
    from toolgate.server.__main__ import main

    sys.exit(main())
