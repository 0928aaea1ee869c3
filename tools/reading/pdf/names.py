"""Replace names in a PDF that PDFium passes over by names that it knows, of the same length.

- It reads no vertical text whose font is not in the file. The name of a predefined CMap for it differs by one letter
  from its horizontal twin's, which gives the same letters in the same order.
- It knows the ligature `fi`, but not `f_i`, as newer fonts call it.
"""

import re

# ISO 32000-1, table 118: the predefined CMaps that exist as -H and -V
CMAPS = (
    "GB-EUC GBpc-EUC GBK-EUC GBKp-EUC GBK2K UniGB-UCS2 UniGB-UTF16 "
    "B5pc HKscs-B5 ETen-B5 ETenms-B5 CNS-EUC UniCNS-UCS2 UniCNS-UTF16 "
    "83pv-RKSJ 90ms-RKSJ 90msp-RKSJ 90pv-RKSJ Add-RKSJ EUC Ext-RKSJ UniJIS-UCS2 UniJIS-UCS2-HW UniJIS-UTF16 "
    "UniJIS2004-UTF16 KSC-EUC KSCms-UHC KSCms-UHC-HW KSCpc-EUC UniKS-UCS2 UniKS-UTF16"
)
VERTICAL = re.compile(rb"(/Encoding\s*/(?:(?:" + CMAPS.replace(" ", "|").encode() + rb")-)?)V(?=[\s/>])")
LIGATURE = re.compile(rb"/f(?:_f)?_[fil](?=[\s/\]])")


def replace_names(body: bytes) -> bytes:
    """Return the PDF with names that PDFium knows; the places of its objects stay."""
    if VERTICAL.search(body):
        body = VERTICAL.sub(rb"\1H", body)
    return LIGATURE.sub(_join_letters, body) if LIGATURE.search(body) else body


def _join_letters(found: re.Match[bytes]) -> bytes:
    return found[0].replace(b"_", b"").ljust(len(found[0]))
