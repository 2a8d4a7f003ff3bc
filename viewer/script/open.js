// Opens another page of polyhead that the reader chooses, and adds its texts to this page for a comparison. Nothing is sent over the network. The file is
// treated as data: it is checked, none of its scripts run, and its words are inserted only as text.

function checkedTokens(tokens) {
  const count = tokens.pieces.length;
  const place = (index) => Number.isInteger(index) && index >= 0 && index < count;
  const fits = tokens.pieces.every((piece) => typeof piece === "string") && tokens.special.every(place) && (tokens.unknown ?? []).every(([index, text]) => place(index) && typeof text === "string") &&
               (tokens.segment ?? tokens.pieces).length === count;
  if (!fits) throw new Error(say("its tokens are damaged"));
  return count;
}

// Reads the data of another page of polyhead and returns its texts as Text objects. Throws an Error that says what is wrong.
function textsOfPage(html) {
  const element = new DOMParser().parseFromString(html, "text/html").getElementById("data");
  if (!element) throw new Error(say("it is no page of polyhead"));
  const json = JSON.parse(element.textContent);
  if (!Object.hasOwn(ENCODINGS, json.encoding)) throw new Error(say("its attention weights have an encoding that this page does not know"));
  const opened = new Decoder(json.encoding);
  return json.texts.map((text) => {
    if (text.pooled) throw new Error(say("its maps are pooled, so that they cannot be compared token by token"));
    const rows = checkedTokens(text.queries), columns = checkedTokens(text.keys ?? text.queries);
    const lengthOf = (numbers) => 4 * Math.ceil((numbers * opened.encoding.bytes) / 3);
    const length = lengthOf(rows * columns);
    const fits = typeof text.text === "string" && text.weights.length === text.layers && text.weights.every((heads) => heads.length === text.heads && heads.every((codes) => typeof codes === "string" && codes.length === length));
    if (!fits) throw new Error(say("its attention weights are damaged"));
    if (!annotationsAreValid(text, rows, columns, lengthOf)) throw new Error(say("its data are damaged"));
    // drop these numbers if they are of another measure: they cannot be compared
    if (JSON.stringify(json.without_measure) !== JSON.stringify(data.without_measure)) delete text.without;
    delete text.value_norms;  // texts of other pages are compared by their attention weights only
    return new Text(text, opened);
  });
}

// Reads a page from a file. Then calls opened(texts, name), or failed(message) if it is no page of polyhead.
async function openPage(file, opened, failed) {
  try {
    opened(textsOfPage(await file.text()), file.name);
  } catch (error) {
    failed(say("“{0}” cannot be opened: {1}.", file.name, error instanceof SyntaxError || error instanceof TypeError ? say("its data are damaged") : error.message));
  }
}
