#!/usr/bin/env python3
"""Draw the sample documents. Needs Pillow and the DejaVu fonts (Debian: fonts-dejavu-core).

    python3 make.py [FOLDER]

The scans are drawn, tilted a little and made dirty with a fixed seed, so that a run gives the same pages again. All names are invented.
Grey is cut to a few levels: noise in 256 levels does not compress, and these files are kept in the repository.
"""

import io
import random
import sys
import zlib
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter, ImageFont

FONTS = Path("/usr/share/fonts/truetype/dejavu")
DPI = 150
SHEET = (1240, 1754)  # A4 at 150 dpi
MARGIN = 130

NOTE = """\
Minutes, Tuesday standing meeting
Present: Marta Oyelaran, Jonas Feld, Priya Kettering (taking notes)

The new coffee machine on the second floor leaks again. Jonas has rung the supplier and a mechanic comes on Thursday.
Until then please use the one beside the library.

Priya proposed to move the weekly call from nine to half past ten, so that the colleagues in Lisbon and Halifax need not get up before
dawn. Everybody agreed; it starts next week.

Marta reported that the summer party is short of helpers for the barbecue. Whoever can turn sausages for an hour should tell her by Friday.
"""

CONTRACT = [
    ("title", "Agreement for the Letting of a Dwelling"),
    ("body", "between Mrs Adelheid Brandwijk, hereinafter the landlord, and Mr Tobias Quennell, hereinafter the tenant."),
    ("head", "1. Premises"),
    ("body", "The landlord lets to the tenant the flat on the third floor of 14 Larch Terrace, consisting of two rooms, a kitchen and a "
             "bathroom, together with the use of the yard."),
    ("head", "2. Payment"),
    ("body", "The monthly sum of 840 crowns is payable in advance on the first working day. A deposit of two monthly sums is held by the "
             "landlord and returned when the keys are handed over and no damage is found."),
    ("head", "3. Term and Departure"),
    ("body", "This agreement ends on the last day of September. The tenant shall vacate the premises no later than noon on that day and "
             "shall return them clean and empty. For every day begun thereafter the tenant owes a thirtieth of the monthly sum."),
    ("head", "4. Repairs"),
    ("body", "Small repairs up to 60 crowns are borne by the tenant. Defects of the heating, the roof and the pipes are reported to the "
             "landlord without delay, who has them mended at her expense."),
    ("body", "Signed at Harrowmere on the second of March."),
]

LETTER_ONE = [
    ("body", "Harrowmere Cottage Hospital\nDepartment of Surgery"),
    ("body", "Dear Mrs Ilvesaar,"),
    ("body", "your operation on the left knee is planned for the morning of the ninth of May. Please arrive at the ward at seven. "
             "Do not eat after midnight; clear water is allowed until five. Leave rings and watches at home."),
    ("body", "You will stay with us for two nights. On the third day a nurse will show you how to walk with crutches, and your family "
             "may fetch you after lunch. Most patients climb stairs again within a fortnight."),
    ("body", "If you have a fever or a cough in the week before, ring us, because then we must postpone the procedure."),
    ("body", "Yours sincerely,\nDr Cornelius Abara"),
]

LETTER_TWO = [
    ("title", "Guide for the Beekeeper's First Spring"),
    ("body", "On the first warm day look at the entrance of the hive. Insects that carry pollen on their legs tell you that the queen "
             "has begun to lay. Do not open the box below twelve degrees: the brood would be chilled."),
    ("body", "A colony that has used up its stores starves in April, not in January. Lift the hive on one side; if it is light, hang in a "
             "frame of sealed honey or give syrup of equal parts of sugar and water."),
    ("body", "When the cherry blossoms, add a second box. A colony without room prepares to swarm, and half of it will leave with the old "
             "queen. Cut out the cells in which new queens are raised, or divide the colony yourself."),
]

REPORT = [
    ("title", "Annual Report of the Veldmark Valley Railway"),
    ("head", "Passengers and Income"),
    ("body", "In the past year the line carried 412,000 travellers, a tenth more than the year before. Income from tickets rose to 1.9 "
             "million crowns. The new evening service to Osterby was full on most days."),
    ("head", "Locomotives"),
    ("body", "Both steam engines passed their boiler inspection. The diesel of 1974 is out of service: its crankshaft broke in November, and "
             "a replacement has been ordered from a foundry abroad."),
    ("head", "The Bridge at Tern Gorge"),
    ("body", "The engineers found rust in eleven of the forty girders. Trains cross at walking pace until the steel has been replaced, "
             "which will close the upper section from October to Easter and cost 640,000 crowns."),
    ("head", "Outlook"),
    ("body", "The board, led by Henrike Solvang, intends to open a halt beside the school at Lower Veldmark."),
]


def font(kind):
    name, size = {"title": ("DejaVuSerif-Bold.ttf", 34), "head": ("DejaVuSerif-Bold.ttf", 27), "body": ("DejaVuSerif.ttf", 25)}[kind]
    return ImageFont.truetype(str(FONTS / name), size)


def lines(draw, text, face, width):
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}".strip()
            if draw.textlength(longer, font=face) > width and line:
                yield line
                line = word
            else:
                line = longer
        yield line


def page(parts):
    sheet = Image.new("L", SHEET, 255)
    draw = ImageDraw.Draw(sheet)
    y = MARGIN
    for kind, text in parts:
        face = font(kind)
        y += {"title": 0, "head": 14, "body": 0}[kind]
        for line in lines(draw, text, face, SHEET[0] - 2 * MARGIN):
            draw.text((MARGIN, y), line, font=face, fill=20)
            y += int(face.size * 1.5)
        y += 22
    assert y < SHEET[1] - 60, "the text does not fit the sheet"
    return sheet


def scan(sheet, angle, seed, levels=8, specks=700):
    """What a tired office scanner makes of a page."""
    dice = random.Random(seed)
    sheet = sheet.rotate(angle, resample=Image.Resampling.BICUBIC, fillcolor=255).filter(ImageFilter.GaussianBlur(0.7))
    dirt = ImageDraw.Draw(sheet)
    for _ in range(specks):
        x, y, size = dice.randrange(SHEET[0]), dice.randrange(SHEET[1]), dice.choice([0, 0, 0, 1])
        dirt.rectangle((x, y, x + size, y + size), fill=dice.choice([90, 150, 200]))
    step = 255 // (levels - 1)
    return sheet.point(lambda v: min(255, (v + step // 2) // step * step))


def pdf_of(sheet):
    """A PDF whose only content is the picture: no fonts, no text layer."""
    pixels = sheet.quantize(16)
    # Four bits a pixel with a palette, deflated: a third of the size of a good JPEG of the same page.
    palette = bytes(pixels.getpalette()[: 16 * 3]).ljust(48, b"\0")
    raw, width = pixels.tobytes(), pixels.width
    rows = bytearray()
    for top in range(0, len(raw), width):
        row = raw[top : top + width]
        rows += bytes(row[x] << 4 | (row[x + 1] if x + 1 < width else 0) for x in range(0, width, 2))
    data = zlib.compress(bytes(rows), 9)
    points = (round(sheet.width * 72 / DPI, 2), round(sheet.height * 72 / DPI, 2))
    content = f"q {points[0]} 0 0 {points[1]} 0 0 cm /Scan Do Q".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {points[0]} {points[1]}] /Contents 4 0 R "
        f"/Resources << /XObject << /Scan 5 0 R >> >> >>".encode(),
        f"<< /Length {len(content)} >>\nstream\n".encode() + content + b"\nendstream",
        f"<< /Type /XObject /Subtype /Image /Width {sheet.width} /Height {sheet.height} /BitsPerComponent 4 /ColorSpace "
        f"[/Indexed /DeviceRGB 15 <{palette.hex()}>] /Filter /FlateDecode /Length {len(data)} >>\nstream\n".encode() + data + b"\nendstream",
    ]
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(f"{number} 0 obj\n".encode() + body + b"\nendobj\n")
    table = out.tell()
    out.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode())
    for place in places:
        out.write(f"{place:010} 00000 n \n".encode())
    out.write(f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n".encode())
    return out.getvalue()


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    (folder / "note.txt").write_text(NOTE, encoding="utf-8")
    scan(page(CONTRACT), 0.8, 1).quantize(8).save(folder / "contract-scan.png", optimize=True, dpi=(DPI, DPI))
    # Black and white, as office scanners write pages; the fax coding makes them small.
    sheets = [scan(page(parts), angle, seed, specks=250).point(lambda v: 255 if v > 140 else 0).convert("1")
              for parts, angle, seed in [(LETTER_ONE, -0.6, 2), (LETTER_TWO, 0.5, 3)]]
    sheets[0].save(folder / "letter-scan.tiff", save_all=True, append_images=sheets[1:], compression="group4", dpi=(DPI, DPI))
    (folder / "report-scan.pdf").write_bytes(pdf_of(scan(page(REPORT), -0.7, 4)))
    for file in sorted(folder.iterdir()):
        if file.suffix in {".txt", ".png", ".tiff", ".pdf"}:
            print(f"{file.stat().st_size:7}  {file.name}")


if __name__ == "__main__":
    main()
