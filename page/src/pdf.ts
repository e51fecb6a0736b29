/** Drawings as PDF with shapes and text, which scale: the rectangles, lines and words that our SVG has. */

/** Points of a pixel. */
const POINT = 0.75;
/** The fonts that every reader of PDF has, and their names in a browser. */
const FAMILY = "Helvetica, Arial, 'Liberation Sans', sans-serif";
/** Signs that the fonts' encoding has at other places than Unicode. */
const SIGNS: Record<string, number> = { "–": 0x96, "—": 0x97, "…": 0x85, "’": 0x92, "•": 0x95 };

/** Converts one of our drawings, in its colours for light pages. */
export function pdfOf(svg: string): Blob {
  // The page's rules forbid styles within a drawing, so they go into a sheet beside it.
  const [element, text = ""] = /<style>([\s\S]*?)<\/style>/.exec(svg) ?? [""];
  const parsed = new DOMParser().parseFromString(svg.replace(element, ""), "image/svg+xml");
  const drawing = parsed.documentElement as unknown as SVGSVGElement;
  const rules = new CSSStyleSheet();
  rules.replaceSync(text.replace(/@media \(prefers-color-scheme: dark\) \{[\s\S]*?\n\}\n/, ""));
  const host = document.createElement("div");
  host.style.cssText = "position: absolute; visibility: hidden; inset: 0 auto auto -99999px";
  const root = host.attachShadow({ mode: "open" });
  root.adoptedStyleSheets = [rules];
  root.append(drawing);
  document.body.append(host);
  try {
    const { width, height } = drawing.viewBox.baseVal;
    const shapes = [...drawing.querySelectorAll<SVGGraphicsElement>("rect, path, text")];
    const operators = shapes.filter((shape) => !shape.closest("defs")).map(operatorsOf);
    const start = `${num(POINT)} 0 0 ${num(-POINT)} 0 ${num(height * POINT)} cm\n`;
    return documentOf(width * POINT, height * POINT, start + operators.join(""));
  } finally {
    host.remove();
  }
}

function operatorsOf(shape: SVGGraphicsElement): string {
  const style = getComputedStyle(shape);
  const of = (name: string) => Number(shape.getAttribute(name) ?? 0);
  switch (shape.tagName) {
    case "rect": {
      // What is idle is hatched, which is drawn as plain ground.
      const fill = style.fill.startsWith("url") ? "rgb(241, 243, 246)" : style.fill;
      const area = ["x", "y", "width", "height"].map((name) => num(of(name))).join(" ");
      return `${colour(fill)} rg ${area} re f\n`;
    }
    case "path": {
      const [, x, y, way, to] = /^M(\S+) (\S+)([HV])(\S+)$/.exec(shape.getAttribute("d") ?? "") ?? [];
      if (!way) return "";
      const dash = style.strokeDasharray === "none" ? "" : "3 3";
      const end = way === "H" ? `${to} ${y}` : `${x} ${to}`;
      const faint = blended(style.stroke, Number(style.strokeOpacity));
      return `${faint} RG [${dash}] 0 d ${x} ${y} m ${end} l S\n`;
    }
    default:
      return written(shape.textContent ?? "", of("x"), of("y"), style);
  }
}

function written(text: string, x: number, y: number, style: CSSStyleDeclaration): string {
  const [size, isBold] = [parseFloat(style.fontSize), Number(style.fontWeight) > 500];
  const pen = document.createElement("canvas").getContext("2d");
  if (pen) pen.font = `${isBold ? "bold " : ""}${size}px ${FAMILY}`;
  const width = pen?.measureText(text).width ?? 0;
  const shift = { middle: width / 2, end: width }[style.textAnchor] ?? 0;
  const bytes = [...text].map((sign) => SIGNS[sign] ?? sign.codePointAt(0) ?? 0);
  const hex = bytes.map((byte) => (byte < 256 ? byte : 0x3f).toString(16).padStart(2, "0")).join("");
  const font = isBold ? "/B" : "/R";
  return `BT ${font} ${num(size)} Tf ${colour(style.fill)} rg 1 0 0 -1 ${num(x - shift)} ${num(y)} Tm <${hex}> Tj ET\n`;
}

/** Red, green and blue from 0 to 1, over a white page. */
function blended(colour: string, opacity: number): string {
  const parts = (colour.match(/[\d.]+/g) ?? []).slice(0, 3).map((part) => Number(part) / 255);
  return parts.map((part) => num(1 - (1 - part) * opacity)).join(" ");
}

const colour = (of: string) => blended(of, 1);
const num = (of: number) => String(Math.round(of * 1000) / 1000);

/** A document with one page of this size in points. */
function documentOf(width: number, height: number, content: string): Blob {
  const font = (name: string) => `<< /Type /Font /Subtype /Type1 /BaseFont /${name} /Encoding /WinAnsiEncoding >>`;
  const objects = [
    "<< /Type /Catalog /Pages 2 0 R >>",
    "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${num(width)} ${num(height)}] /Contents 4 0 R ` +
    "/Resources << /Font << /R 5 0 R /B 6 0 R >> >> >>",
    `<< /Length ${content.length} >>\nstream\n${content}endstream`,
    font("Helvetica"), font("Helvetica-Bold"),
  ];
  let [text, places] = ["%PDF-1.4\n", ""];
  objects.forEach((object, nth) => {
    places += `${String(text.length).padStart(10, "0")} 00000 n \n`;
    text += `${nth + 1} 0 obj\n${object}\nendobj\n`;
  });
  const count = objects.length + 1;
  const end = `trailer\n<< /Size ${count} /Root 1 0 R >>\nstartxref\n${text.length}\n%%EOF\n`;
  return new Blob([text, `xref\n0 ${count}\n0000000000 65535 f \n${places}${end}`], { type: "application/pdf" });
}
