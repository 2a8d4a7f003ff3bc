// Converts pieces to the words that are shown. There are three ways in which tokenizers mark where a word begins or continues.

// Byte-level BPE (GPT-2) writes each byte as a printable character: most bytes as the character with the byte's code, the other 68 as U+0100 and following. The
// space is Ġ.
const BYTES = (() => {
  const printable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  const moved = [...Array(256).keys()].filter((byte) => !printable(byte));
  return new Map([...Array(256).keys()].map((byte) => [printable(byte) ? byte : 256 + moved.indexOf(byte), byte]));
})();

// The text that a byte-level piece stands for. If its bytes do not form whole characters, the piece itself.
function textOfBytes(piece) {
  const bytes = [...piece].map((character) => BYTES.get(character.codePointAt(0)));
  if (bytes.includes(undefined)) return piece;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
  } catch {
    return piece;
  }
}

// Three kinds of tokenizers. text(piece): the text to show for a piece. starts(piece): true if the piece begins a word. spaced: true if pieces do not contain
// the space before a word.
const SPELLINGS = {
  plain: { text: (piece) => piece, starts: () => true, spaced: true },
  wordpiece: { text: (piece) => piece, starts: (piece) => !piece.startsWith("##"), spaced: true },
  sentencepiece: { text: (piece) => piece.replace(/[▁␣]/g, " "), starts: (piece) => piece.startsWith("▁") },
  bytes: { text: textOfBytes, starts: (piece) => piece.startsWith("Ġ") || piece.startsWith("Ċ") },
};

// Chooses the kind of tokenizer that made these pieces. Ġ is also a Maltese letter, so pieces count as byte-level only if a quarter of them begin with Ġ and
// none decodes to a control character.
function spellingOf(pieces) {
  const count = (start) => pieces.filter((piece) => piece.startsWith(start)).length;
  if (count("##") > 0) return SPELLINGS.wordpiece;
  if (count("▁") > 0) return SPELLINGS.sentencepiece;
  const control = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/;
  if (count("Ġ") * 4 >= Math.max(1, pieces.length) && !pieces.some((piece) => control.test(textOfBytes(piece)))) return SPELLINGS.bytes;
  return SPELLINGS.plain;
}

// polyhead's own tokenizers write a byte that is not a whole character as \xE8.
const BYTE = /^\\x[0-9A-F]{2}$/;
function decodedBytes(pieces) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(pieces, (piece) => parseInt(piece.slice(2), 16)));
  } catch {
    return pieces.join("");
  }
}

// Index -> { name, text, first, last } for the pieces that are bytes of a whole character: the name says which byte it is, as in "好 1/3"; the text is the character
// for the first byte and empty for the others; first and last are the indices of the character's bytes.
function bytesOfCharacters(pieces) {
  const found = new Map();
  pieces.forEach((piece, first) => {
    const lead = BYTE.test(piece) ? parseInt(piece.slice(2), 16) : 0, count = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
    const bytes = pieces.slice(first, first + count), character = bytes.every((one) => BYTE.test(one)) ? decodedBytes(bytes) : "";
    if ([...character].length !== 1) return;
    bytes.forEach((_, at) => found.set(first + at, { name: `${visibleWord(character)} ${at + 1}/${count}`, text: at === 0 ? character : "", first, last: first + count - 1 }));
  });
  return found;
}

const subscript = (number) => String(number).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);

// Numbers words that occur more than once, as in the₁, the₂.
function numbered(words) {
  const total = new Map(), seen = new Map();
  for (const text of words) total.set(text, (total.get(text) ?? 0) + 1);
  return words.map((text) => {
    if (total.get(text) === 1) return text;
    seen.set(text, (seen.get(text) ?? 0) + 1);
    return text + subscript(seen.get(text));
  });
}

// The text to show for a word. A blank word would be invisible, so it is shown as a sign.
const visibleWord = (text) => (text.trim() !== "" ? text.trim() : text.includes("\n") ? "↵" : "␣");
