"""Write small PDFs by hand: objects, a table of them, and a trailer."""

import zlib
from collections.abc import Sequence

HELVETICA = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"


class PdfFile:
    """The objects of a PDF. The catalog is object 1, and the tree of pages object 2."""

    def __init__(self) -> None:
        self.objects: dict[int, bytes] = {1: b"", 2: b""}
        self.pages: list[int] = []
        self.catalog = ""
        self.trailer = ""

    def add(self, content: str | bytes) -> int:
        """Add an object, and return its number."""
        number = max(self.objects) + 1
        self.objects[number] = content.encode("latin-1") if isinstance(content, str) else content
        return number

    def add_stream(self, content: str | bytes, keys: str = "") -> int:
        data = content.encode("latin-1") if isinstance(content, str) else content
        return self.add(f"<</Length {len(data)}{keys}>>\nstream\n".encode() + data + b"\nendstream")

    def add_page(self, content: str, font: int | str = HELVETICA, keys: str = "") -> int:
        """Add a page of 600 by 800 points whose font is F1."""
        named = font if isinstance(font, str) else f"{font} 0 R"
        body = self.add_stream(content)
        resources = f"/Resources<</Font<</F1 {named}>>>>"
        page = f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]{resources}/Contents {body} 0 R{keys}>>"
        self.pages.append(self.add(page))
        return self.pages[-1]

    def finish(self) -> None:
        """Write the catalog and the tree of pages."""
        kids = " ".join(f"{number} 0 R" for number in self.pages)
        self.objects[1] = f"<</Type/Catalog/Pages 2 0 R{self.catalog}>>".encode()
        self.objects[2] = f"<</Type/Pages/Kids[{kids}]/Count {len(self.pages)}>>".encode()

    def to_bytes(self, *, xref: bool = True, order: Sequence[int] = ()) -> bytes:
        """Return the file. `order` is that of the objects in it."""
        self.finish()
        body, places = b"%PDF-1.7\n", dict[int, int]()
        for number in order or sorted(self.objects):
            places[number] = len(body)
            body += f"{number} 0 obj\n".encode() + self.objects[number] + b"\nendobj\n"
        if not xref:
            return body
        start, size = len(body), max(self.objects) + 1
        rows = "".join(f"{places[number]:010} 00000 n \n" for number in range(1, size))
        body += f"xref\n0 {size}\n0000000000 65535 f \n{rows}".encode()
        body += f"trailer\n<</Size {size}/Root 1 0 R{self.trailer}>>\nstartxref\n{start}\n%%EOF\n".encode()
        return body

    def to_packed_bytes(self) -> bytes:
        """Return a file whose objects without a stream are packed, with a stream as its table (PDF 1.5)."""
        self.finish()
        body, places = b"%PDF-1.7\n", dict[int, tuple[int, int, int]]()
        packed = [number for number, data in self.objects.items() if b"stream" not in data]
        inner = b" ".join(self.objects[number] for number in packed)
        offsets = [len(b" ".join(self.objects[each] for each in packed[:index])) for index in range(len(packed))]
        offsets = [offset + (index > 0) for index, offset in enumerate(offsets)]
        head = " ".join(f"{number} {offset}" for number, offset in zip(packed, offsets, strict=True)).encode() + b" "
        data = zlib.compress(head + inner)
        keys = f"/Type/ObjStm/N {len(packed)}/First {len(head)}/Filter/FlateDecode"
        holder = self.add_stream(data, keys)
        for index, number in enumerate(packed):
            places[number] = (2, holder, index)
        for number in sorted(set(self.objects) - set(packed)):
            places[number] = (1, len(body), 0)
            body += f"{number} 0 obj\n".encode() + self.objects[number] + b"\nendobj\n"
        table, start = max(self.objects) + 1, len(body)
        places |= {0: (0, 0, 65535), table: (1, start, 0)}
        rows = b"".join(
            kind.to_bytes(1, "big") + place.to_bytes(4, "big") + last.to_bytes(2, "big")
            for _, (kind, place, last) in sorted(places.items())
        )
        keys = f"<</Type/XRef/Size {table + 1}/W[1 4 2]/Root 1 0 R/Length {len(rows)}>>"
        body += f"{table} 0 obj\n{keys}\nstream\n".encode() + rows + b"\nendstream\nendobj\n"
        return body + f"startxref\n{start}\n%%EOF\n".encode()


def show(*texts: tuple[float, float, str], size: float = 12) -> str:
    """Return the operators that draw texts at places."""
    drawn = (f"1 0 0 1 {x} {y} Tm ({words}) Tj" for x, y, words in texts)
    return f"BT /F1 {size} Tf {' '.join(drawn)} ET "
