// The text of an answer as it is read aloud.

/** Browsers stop in the middle of longer utterances. */
const MAX_UTTERANCE_CHARACTERS = 220;

/** Markdown as a person would read it aloud: without marks, addresses and blocks of code. */
export function spokenText(markdown: string): string {
  return markdown
    .replace(/^(```|~~~)[^\n]*\n[\s\S]*?(^\1[^\n]*$|$(?![\s\S]))/gm, "\n")
    .replace(/!\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/\[([^\]]+)\]\([^)]*\)/g, "$1")
    .replace(/^\s*\|?[\s:|-]*-{3}[\s:|-]*\|?\s*$/gm, "")
    .replace(/^\s{0,3}(#{1,6}\s+|>\s?|[-*+]\s+(\[[ xX]\]\s+)?)/gm, "")
    .replace(/(\*\*|__|~~|`+)(.+?)\1/g, "$2")
    .replace(/(^|[^\w*])[*_](\S(?:.*?\S)?)[*_](?!\w)/gm, "$1$2")
    .replace(/[ \t]*\|[ \t]*/g, ", ")
    .replace(/(^|\n)(, )+|(, )+(?=\n|$)/g, "$1")
    .replace(/\n{2,}/g, "\n")
    .trim();
}

/** The text in utterances: paragraphs, and the sentences of long ones. A sentence that is too long is divided between words. */
export function utterances(text: string): string[] {
  return text.split("\n").flatMap((line) => {
    const found: string[] = [];
    for (const sentence of line.match(/[^.!?。！？؟]+[.!?。！？؟]*\s*|[.!?。！？؟]+\s*/gu) ?? []) {
      for (const piece of pieces(sentence)) {
        const last = found.at(-1);
        if (last !== undefined && last.length + piece.length <= MAX_UTTERANCE_CHARACTERS) found[found.length - 1] = last + piece;
        else found.push(piece);
      }
    }
    return found.map((one) => one.trim()).filter((one) => one !== "");
  });
}

function pieces(sentence: string): string[] {
  const found: string[] = [];
  let rest = sentence;
  while (rest.length > MAX_UTTERANCE_CHARACTERS) {
    const space = rest.lastIndexOf(" ", MAX_UTTERANCE_CHARACTERS);
    const end = space > 0 ? space + 1 : MAX_UTTERANCE_CHARACTERS;
    found.push(rest.slice(0, end));
    rest = rest.slice(end);
  }
  return [...found, rest];
}
