"""Answer each line of standard input, the HTML of a page as JSON, with the HTML of its content and the seconds."""

import json
import logging
import sys
import time

from readability import Document


def main() -> None:
    logging.disable()
    for line in sys.stdin:
        start = time.process_time()
        try:
            content = Document(json.loads(line)).summary(html_partial=True)
        except Exception:
            content = ""
        print(json.dumps([content, time.process_time() - start]), flush=True)


if __name__ == "__main__":
    main()
