// Gives diagrams the gallery's typeface: their frame and the images that they become have only the fonts of the machine.

import font from "@fontsource-variable/vazirmatn/files/vazirmatn-latin-wght-normal.woff2?inline";

const STYLE = `@font-face { font-family: "Gallery"; src: url("${font}"); font-weight: 100 900; } * { font-family: "Gallery" !important; }`;

/** Runs in the frame before the first diagram: adds the typeface to the frame, and to each picture that leaves it. */
const PROGRAM = `
{
  const style = ${JSON.stringify(STYLE)};
  document.body.append(Object.assign(document.createElement("style"), { textContent: style }));
  void document.fonts.load('16px "Gallery"');
  const serialize = XMLSerializer.prototype.serializeToString;
  XMLSerializer.prototype.serializeToString = function (picture) {
    picture.append(Object.assign(document.createElementNS("http://www.w3.org/2000/svg", "style"), { textContent: style }));
    return serialize.call(this, picture);
  };
}`;

/** The program that sanitises diagrams, and after it the typeface. */
export async function withDiagramFont(program: Response): Promise<Response> {
  return new Response(`${await program.text()}\n${PROGRAM}`);
}

export function isSanitizer(path: string): boolean {
  return path.includes("/purify");
}
