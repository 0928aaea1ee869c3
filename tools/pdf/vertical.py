"""Read vertical Chinese, Japanese and Korean text as horizontal text, in the same order.

PDFium passes over vertical text whose font is not in the file. The name of a predefined CMap for it differs by one
letter from its horizontal twin's, so the file's offsets stay right.
"""

import re

# ISO 32000-1, table 118: the predefined CMaps that exist as -H and -V
NAMES = (
    "GB-EUC GBpc-EUC GBK-EUC GBKp-EUC GBK2K UniGB-UCS2 UniGB-UTF16 "
    "B5pc HKscs-B5 ETen-B5 ETenms-B5 CNS-EUC UniCNS-UCS2 UniCNS-UTF16 "
    "83pv-RKSJ 90ms-RKSJ 90msp-RKSJ 90pv-RKSJ Add-RKSJ EUC Ext-RKSJ UniJIS-UCS2 UniJIS-UCS2-HW UniJIS-UTF16 "
    "UniJIS2004-UTF16 KSC-EUC KSCms-UHC KSCms-UHC-HW KSCpc-EUC UniKS-UCS2 UniKS-UTF16"
)
VERTICAL = re.compile(rb"(/Encoding\s*/(?:(?:" + NAMES.replace(" ", "|").encode() + rb")-)?)V(?=[\s/>])")


def make_horizontal(body: bytes) -> bytes:
    """Return the PDF with horizontal CMaps in place of predefined vertical ones."""
    return VERTICAL.sub(rb"\1H", body) if VERTICAL.search(body) else body
