// Shows tokens as the text from which the tokenizer made them. The words of the text can be tinted.

// Removes the differences that a tokenizer may have removed: those of case, accents and character width.
const plainly = (text) => text.normalize("NFKD").replace(/\p{Mn}/gu, "").toLowerCase();

const withoutMark = (tokens, index, text) => (tokens.spelling.starts(tokens.pieces[index]) ? text : text.replace(/^##/, ""));

// Finds the tokens in the original text. Returns for each token { before, text }: its characters in the original, and the space before them. Null if some token
// is not found. If a character is several tokens, one for each byte, the first of them has the character and the others are empty.
function alignedText(tokens, original) {
  let plain = "", at = 0, end = 0;
  const places = [];  // for each character of plain, the index in the original of the character that it comes from
  let place = 0;
  for (const character of original) {
    const spelled = plainly(character);
    plain += spelled;
    for (let i = 0; i < spelled.length; ++i) places.push(place);
    place += character.length;
  }
  places.push(original.length);
  const result = [];
  for (const index of tokens.pieces.keys()) {
    if (tokens.special.has(index)) {
      result.push({ before: "", text: tokens.pieces[index] });
      continue;
    }
    const { text } = tokens.bytes.get(index) ?? {};
    const spelled = plainly(withoutMark(tokens, index, text ?? tokens.characters(index))).trim();
    if (text === "") {  // a later byte of a character
      result.push({ before: "", text: "" });
      continue;
    }
    if (spelled === "" && tokens.bytes.has(index + 1)) {  // the mark of the space before a character
      const [space] = /^\s*/.exec(original.slice(end));
      result.push({ before: "", text: space });
      end += space.length;
      continue;
    }
    while (at < plain.length && /[\s|]/.test(plain[at]) && plain[at] !== spelled[0]) ++at;  // "|" is between the texts of a pair
    if (spelled === "" || !plain.startsWith(spelled, at)) return null;
    const from = places[at];
    at += spelled.length;
    if (places[at] <= from) return null;
    result.push({ before: original.slice(end, from), text: original.slice(from, places[at]) });
    end = places[at];
  }
  return result;
}

const TIGHT = String.raw`[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}\u3000-\u303f\uff00-\uffef]`;  // characters of scripts that are written without spaces
const NO_SPACE_BEFORE = new RegExp(`^(?:${TIGHT}|[.,;:!?%)\\]}’”»…،؛؟])`, "u");
const NO_SPACE_AFTER = new RegExp(`(?:${TIGHT}|[([{“«‘])$`, "u");

// The same result as that of alignedText(), for tokens without an original text. There is a space before each word, except before punctuation and in scripts
// that are written without spaces.
function joinedText(tokens) {
  let last = "";
  return tokens.pieces.map((piece, index) => {
    if (tokens.special.has(index)) {
      last = "";
      return { before: "", text: piece };
    }
    const byte = tokens.bytes.get(index)?.text;
    if (byte === "") return { before: "", text: "" };
    const [, space, rest] = /^(\s*)(.*)$/su.exec(withoutMark(tokens, index, byte ?? tokens.characters(index)));
    const spaced = tokens.spelling.spaced && tokens.spelling.starts(piece) && last !== "" && !NO_SPACE_BEFORE.test(rest) && !NO_SPACE_AFTER.test(last);
    last = rest || " ";
    return rest === "" ? { before: space.includes("\n") ? space : "", text: visibleWord(space) } : { before: space || (spaced ? " " : ""), text: rest };
  });
}

const runningText = (tokens, original) => (original && alignedText(tokens, original)) || joinedText(tokens);

// For each colour of the ramp, the colour of words on it: black or white, whichever has a contrast of at least 4.5.
function inksOf(ramp) {
  const css = (pixel) => {
    const light = [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => sum + part * toLinear(((pixel >>> (8 * i)) & 255) / 255), 0);
    return [hexOf(pixel), light > 0.179 ? "#000000" : "#ffffff"];
  };
  return { levels: Array.from(ramp.pixels, css), nan: css(ramp.nan) };
}

// A paragraph whose words can be tinted.
class Running {
  static directions = () => [say("Where a word looks"), say("Who looks at a word")];
  static hint = () => say("Tinted: the mean attention to each word. Click a word.");

  constructor() { this.element = make("p", { className: "running", dir: "auto" }); }

  // text: from runningText(). indices: the tokens to show. noted: true if pointing at a word shows its token. blocked: the masked keys.
  build(tokens, text, indices, noted, blocked) {
    this.words = new Map();
    const parts = [];
    for (const index of indices) {
      const special = tokens.special.has(index);
      // Use span, so that the letters of an Arabic word join across its pieces. Use bdi for pieces with characters that change the direction of text, so
      // that the next words keep their direction.
      const element = document.createElement(special || /[\u202a-\u202e\u2066-\u2069]/.test(text[index].text) ? "bdi" : "span");
      element.className = `piece${special ? " special" : ""}${tokens.unknown.has(index) ? " unknown" : ""}${blocked?.has(index) ? " blocked" : ""}`;
      element.textContent = text[index].text;
      element.dataset.index = index;
      if (noted) element.title = tokens.note(index);
      if (text[index].before) parts.push(text[index].before);
      else if (special) parts.push("\u200b");  // a zero-width space, so that a line may break between special tokens
      parts.push(element);
      this.words.set(index, element);
    }
    this.element.replaceChildren(...parts);
    this.levels = new Map();
    this.lit = [];
  }

  // weightOf(index): the attention weight of a word. If weightOf is null, words have no colour. A word with a weight of exactly 0 is grey.
  tint(weightOf, look, largest) {
    for (const [index, element] of this.words) {
      const weight = weightOf ? weightOf(index) : null;
      const level = weight === null ? null : weight === 0 ? "none" : Number.isNaN(weight) ? "nan" : Math.round(255 * Math.min(1, Math.max(0, look.scale.position(weight, largest))));
      if (this.levels.get(index) === level) continue;  // most words keep their tint when the pointer moves, so skip them
      this.levels.set(index, level);
      element.classList.toggle("none", level === "none");
      const [background, ink] = typeof level === "number" ? look.inks.levels[level] : level === "nan" ? look.inks.nan : ["", ""];
      element.style.background = background;
      element.style.color = ink;
    }
  }

  light(indices) {
    for (const element of this.lit) element.classList.remove("lit");
    this.lit = indices.map((index) => this.words.get(index)).filter(Boolean);
    for (const element of this.lit) element.classList.add("lit");
  }

  // Underlines the words that have a known link to the chosen word.
  underline(indices) {
    for (const [index, element] of this.words) element.classList.toggle("linked", indices.has(index));
  }

  static at(event) {
    const piece = event.target.closest(".piece");
    return piece && Number(piece.dataset.index);
  }
}
