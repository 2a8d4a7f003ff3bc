// The page's texts, in English or Chinese. The English text is the key; chinese.js and chinese_live.js have a line for each.
//   say("{0} of {1} links", 3, 9)                  {0} and {1} are replaced by the values
//   say("{0} {0|head|heads}", 1)                   singular for 1, plural for other numbers
if (typeof CHINESE_LIVE !== "undefined") Object.assign(CHINESE, CHINESE_LIVE);  // chinese_live.js, which only live pages have, defines CHINESE_LIVE
const LANGUAGES = { en: { name: "English", tag: "en", lines: {} }, zh: { name: "中文", tag: "zh-CN", lines: CHINESE } };

let spoken = LANGUAGES.en;

// The same as say(), but the values may be elements, and the result is a list of strings and elements.
function sayParts(english, ...values) {
  const line = spoken.lines[english] ?? english;
  return line.split(/(\{\d[^}]*\})/).map((part) => {
    const place = /^\{(\d)(?:\|(.*)\|(.*))?\}$/.exec(part);
    if (!place) return part;
    const [, at, one, many] = place;
    return one === undefined ? values[at] : values[at] === 1 ? one : many;
  });
}

const say = (english, ...values) => sayParts(english, ...values).join("");

// The texts of page.html that have a translation, each as [English, write(text)]. Texts of a model or of the reader are not translated.
const ATTRIBUTES = ["title", "aria-label", "placeholder"];

const pageTexts = (() => {
  const found = [];
  const add = (text, write) => {
    const english = text.trim();
    if (english in CHINESE) found.push([english, (line) => write(text.replace(english, () => line))]);
  };
  for (const element of document.body.querySelectorAll("*:not([translate=no], [translate=no] *, script)")) {
    for (const node of element.childNodes) if (node.nodeType === Node.TEXT_NODE) add(node.data, (text) => { node.data = text; });
    for (const name of ATTRIBUTES) if (element.hasAttribute(name)) add(element.getAttribute(name), (text) => element.setAttribute(name, text));
  }
  return found;
})();

// Sets the text of an element now and whenever the language of the page changes: sayOn("Close", make("button")). name: sets this attribute instead of the text.
function sayOn(english, element, name) {
  const write = (text) => { if (name) element.setAttribute(name, text); else element.textContent = text; };
  pageTexts.push([english, write]);
  write(say(english));
  return element;
}

// Switches the page to a language: "en" or "zh".
function speak(name) {
  spoken = LANGUAGES[name];
  document.documentElement.lang = spoken.tag;
  for (const [english, write] of pageTexts) write(say(english));
}

const readersLanguage = () => (/^zh\b/i.test(navigator.language) ? "zh" : "en");
